"""The built-in practice corpus: children's stories in the manner of TinyStories (arXiv:2305.07759, section 2),
put together from word lists, features and plots, so that what each story contains is known.

    python stories.py                                # one story
    python stories.py --n 3 --seed 1 --headers       # three, each under the header TinyStories-Instruct gives
    python prepare.py builtin --stories 20000        # a corpus of them, ready to train on
"""

import argparse
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

FEATURES = ("Dialogue", "Twist", "BadEnding", "MoralValue", "Foreshadowing", "Conflict")

# ---------------------------------------------------------------------------------------------------------------------
# Words. A kind is a list that a slot such as {toy} draws from; its members can stand for each other in every plot.

GIRLS = """Mia Anna Emma Lucy Ella Zoe Ruby Rosie Molly Ivy Nora Maya Ava Amy Kate Jane Jenny Sally Polly Tina Nina Lena
    Clara Alice Hannah Holly Julia Leah Maria Mandy Sophie Susie Tilly Wendy Betty Ellie Sara Lila Eva Lola Bella Lisa
    Fay Dora Millie Hattie""".split()
BOYS = """Tom Tim Ben Sam Max Leo Jake Luke Noah Finn Oscar Peter Paul Billy Bobby Charlie Danny David Eddie Felix Fred
    George Harry Henry Hugo Jim Joe John Josh Kevin Matt Mike Nick Oliver Owen Ryan Simon Sid Theo Toby Tony Zack Andy
    Adam Jack Alfie""".split()
NAMES = tuple(GIRLS + BOYS)

KINDS = {
    kind: words.split()
    for kind, words in {
        # nouns
        "toy": "ball kite truck train drum robot puppet doll wagon boat plane car whistle trumpet dinosaur tractor teddy",
        "treat": "cake pie cookie muffin bun pancake cupcake tart biscuit doughnut waffle sandwich pretzel brownie",
        "fruit": "apple pear plum peach cherry berry strawberry grape apricot blueberry",
        "flower": "rose tulip sunflower daisy violet bluebell dandelion buttercup daffodil",
        "vegetable": "carrot pumpkin cabbage tomato potato turnip beet radish onion cucumber",
        "treasure": "shell pebble button coin marble badge bead ring bell crystal",
        "garment": "scarf coat sweater jacket cape shawl poncho cardigan",
        "place": "park garden forest beach meadow field hill pond lake farm playground orchard yard river valley stream",
        "home": "mill market village bridge school station library castle church harbor bakery lighthouse",
        "spot": "bench bush tree rock log fence gate wall shed stump hedge barrel",
        "nook": "bed chair sofa table desk stool dresser bookcase armchair couch wardrobe",
        "fragile": "vase teapot jug bowl plate lamp mirror clock",
        "instrument": "flute drum fiddle trumpet harp",
        "bird": "robin sparrow owl crow dove thrush wren pigeon swallow finch",
        "wild": "squirrel hedgehog rabbit chipmunk fox otter badger raccoon",
        "farm": "cow horse goat sheep donkey pony calf foal lamb pig",
        "pet": "kitten puppy cat",
        "bug": "ant bee beetle butterfly snail grasshopper caterpillar spider worm dragonfly cricket",
        "flyer": "butterfly dragonfly ladybug",
        "beast": "elephant lion tiger giraffe zebra hippo kangaroo camel crocodile dragon whale penguin dolphin ostrich",
        "animal": "rabbit bear fox mouse squirrel hedgehog monkey raccoon beaver badger mole otter panda",
        "helper": "baker farmer gardener teacher fisherman postman shopkeeper painter sailor miller carpenter librarian",
        "grownup": "mom dad grandma grandpa mother father mommy daddy granny",
        "time": "morning afternoon day",
        "snowman": "Snowball Icicle Flake Chilly Winter Frost Crystal",
        # adjectives
        "trait": "little kind cheerful curious friendly sweet merry lively gentle clever playful funny happy busy smart "
        "polite thoughtful jolly young small bright eager lovely helpful loving good nice honest caring dreamy "
        "hopeful nimble",
        "weather": "sunny warm bright cool lovely fine quiet clear breezy mild crisp fresh golden beautiful pleasant calm "
        "cloudless glorious peaceful hazy delightful nice",
        "cozy": "cozy tiny neat old white tidy snug narrow crooked wooden yellow humble shabby low lonely plain",
        "color": "red blue green yellow orange purple pink white golden silver",
        "puppy": "brown black spotted furry fluffy muddy playful naughty frisky cheeky hungry curly scruffy shaggy bouncy",
        "sorry": "sad upset unhappy miserable gloomy awful terrible dreadful heartbroken glum hopeless wretched rotten",
        "merry": "happy glad pleased merry delighted thrilled joyful excited overjoyed cheerful",
    }.items()
}

# {toy.adj}: what may be said of anything of that kind
ADJECTIVES_OF = {
    kind: words.split()
    for kind, words in {
        "toy": "red blue green yellow orange purple new shiny pretty lovely special fine splendid wonderful bright "
        "handsome charming dazzling marvelous sturdy unusual cute amazing painted homemade fantastic magnificent",
        "treat": "sweet warm tasty fresh yummy delicious sticky crunchy golden perfect buttery crispy sugary spicy "
        "crumbly",
        "fruit": "ripe juicy sweet fresh plump delicious",
        "flower": "pretty tall tiny bright lovely graceful delicate fragrant slender",
        "treasure": "shiny tiny pretty lucky golden silver sparkly strange glossy smooth rare gleaming ancient valuable "
        "precious",
        "garment": "woolly warm cozy striped spotted thick fuzzy bright colorful patched knitted checked baggy faded soft "
        "thin",
        "place": "quiet wide big lovely peaceful pretty shady sunny nearby empty crowded windy",
        "spot": "old big low wide mossy dusty lonely",
        "bird": "tiny small young gray brown feathery speckled plump",
        "wild": "small young furry brown shy timid thin skinny tired nervous",
        "farm": "fat brown white gentle spotted hungry noisy clumsy lazy stubborn",
        "bug": "tiny slow green busy black",
        "beast": "huge fierce giant gray enormous mighty gigantic ferocious ugly proud",
        "helper": "kind old friendly wise gentle tall jolly cheerful plump patient bald cheery broad generous",
    }.items()
}

# phrases that begin with their verb, so that {play.ed} and {play.ing} can be made of {play}
KINDS |= {
    kind: [phrase.strip() for phrase in phrases.split(",")]
    for kind, phrases in {
        "play": """climb trees, chase butterflies, roll down the hill, splash in puddles, pick daisies, count the clouds,
        hop over logs, skip along the path, dig in the sand, gather leaves, swing up high, jump in the leaves,
        watch the ants, feed the ducks, throw sticks in the stream, listen to the birds, whistle little tunes,
        explore the woods, crawl through the bushes, follow the snails, hunt for bugs, march like soldiers,
        spin in circles, dance in a ring, float paper boats, search for shells, blow bubbles, kick a ball,
        hide in the hay, tell stories, sing silly songs, make mud pies, pretend to be pirates, wave at the trains,
        lie in the grass, smell the flowers, stomp in the mud, gallop like horses, paint pictures, draw funny faces,
        read picture books, cut out paper stars, stack blocks, bang on pots, sort buttons, juggle apples,
        peek over the fence, paddle in the stream, slide down the bank, collect feathers, mix mud and water,
        catch falling leaves, build towers of stones, race around the house, guess riddles, balance on the wall,
        leap over puddles, wander by the stream, trace letters in the sand, hum old songs, play hide and seek""",
        "game": """dance in a ring, spin in circles, sing silly songs, play hide and seek, guess riddles, blow bubbles,
        march like soldiers, kick a ball, gallop like horses, pretend to be pirates, tell stories, watch the ants,
        walk on tiptoe, watch the clouds, turn somersaults, catch a ball, stand on one leg, tell jokes""",
        "chore": """set the table, feed the hens, sweep the kitchen, wash the cups, rake the leaves, fetch the milk,
        peel the potatoes, dust the shelves, fold the towels, tidy the room, scrub the pots, gather the eggs,
        shake the rugs, pile up the wood, dry the plates, hang up the coats, polish the spoons, carry the bags,
        stir the soup, mop the floor, brush the pony, bake the bread, pull the weeds, knead the dough,
        squeeze the lemons, wipe the windows, fill the jugs, chop the carrots, iron the napkins, mend the socks""",
        "snowplay": """threw snowballs, slid on the ice, made snow angels, caught snowflakes, sang winter songs,
        rode on the sled, drew in the snow, built a snow wall""",
    }.items()
}

# Words that the plots write out themselves. Verbs are here in full, for almost every verb needs its own object.
OTHER_NOUNS = """advice arm attic bag ball balloon bandage bark barn basket bath bicycle birthday bit bite blanket board
    box boy branch brand bread breakfast breath broom bucket candle captain carrot cart cat chimney chin clay closet
    clown coal cold company corner cough course crack crown crumb cry cup cupboard dark dent dinner dish ditch dog door
    dot dough drain drawer dust ear earth edge end evening face family fault feast feet fever fib finger fire fish flag
    flake floor fog food foot freezer friend fright front frost fun fur ghost giant gift girl glass glue goal gold grass
    ground guest gust half hand hay head heap heart hole home house ice idea inside joy juice key kindness king kitchen
    knee knot ladder lake lantern leaf left letter lie light lip mast medal medicine middle midnight milk minute mistake
    money monster moon moss mountain mouth mud music name necklace nest newspaper night nose nut oak paint paper parrot
    part party patch path patience paw pea penny people picnic picture piece pillow pin pine pipe pirate place pocket
    pool porridge post pot present pride prize promise puddle puff queen race raft rain rainbow rake repair rest ride
    ring road roof room root rope rose rug rule runner sand saucer scratch scream seed shade shadow shape sheet shelf
    ship shoe shout side silence silk skin sky sled smile snowball snowman sock soil somersault song soup spade spoon
    spring star step stick stone storm story stove straw street string summer sun sunshine supper surprise swamp tap
    tape tent thief thing thread throat top town trip truth tub tuft tummy tune turn voice wave way weather wedding week
    wheel wind window wing winner winter witch wolf wood word worry wrist year""".split()
NOUN_KINDS = """toy treat fruit flower vegetable treasure garment place home spot nook fragile instrument bird wild farm
    pet bug flyer beast animal helper grownup time""".split()
NOUNS = tuple(dict.fromkeys(OTHER_NOUNS + sum((KINDS[kind] for kind in NOUN_KINDS), [])))

OTHER_ADJECTIVES = """afraid alone angry back bad bashful bent big bitter bold bored boring brave broken careful cheeky
    chilly clean close cold cool dark dead deep dirty dry dull early easy empty faint fair far fast fat fierce flat
    foggy free frightened frosty full good gray great greedy gusty half happy hard healthy heavy high hot huge hungry
    icy ill late left limp little lonely long loose lost loud low muddy nervous new open pale poor proud quiet rainy
    ready real right rude ruined sad safe same scared second selfish shy silent silly sleepy slow small soft sore
    special still stormy strange strong surprised sweet tall thick thin third tidy tight timid tired true useful warm
    weak wet wide wild wise wonderful wrong young""".split()
ADJECTIVES = tuple(
    dict.fromkeys(
        OTHER_ADJECTIVES
        + sum(ADJECTIVES_OF.values(), [])
        + sum((KINDS[kind] for kind in "trait weather cozy color puppy sorry merry".split()), [])
    )
)

IRREGULAR_VERBS = {
    base: (did, done)
    for base, did, done in map(
        str.split,
        """be was been, beat beat beaten, become
    became become, begin began begun, bend bent bent, bite bit bitten, bleed bled bled, blow blew blown, break broke
    broken, bring brought brought, build built built, buy bought bought, catch caught caught, come came come, creep
    crept crept, cut cut cut, dig dug dug, do did done, draw drew drawn, drink drank drunk, eat ate eaten, fall fell
    fallen, feed fed fed, feel felt felt, find found found, fly flew flown, forget forgot forgotten, forgive forgave
    forgiven, get got gotten, give gave given, go went gone, grow grew grown, hang hung hung, have had had, hear heard
    heard, hide hid hidden, hit hit hit, hold held held, hurt hurt hurt, keep kept kept, kneel knelt knelt, know knew
    known, lay laid laid, lead led led, leave left left, let let let, lie lay lain, lose lost lost, make made made, mean
    meant meant, meet met met, put put put, read read read, ride rode ridden, ring rang rung, rise rose risen, run ran
    run, saw sawed sawn, say said said, see saw seen, seek sought sought, sell sold sold, set set set, sew sewed sewn,
    shake shook shaken, shine shone shone, shut shut shut, sing sang sung, sink sank sunk, sit sat sat, sleep slept
    slept, slide slid slid, spin spun spun, spread spread spread, stand stood stood, steal stole stolen, stick stuck
    stuck, sting stung stung, sweep swept swept, swim swam swum, swing swung swung, take took taken, tear tore torn,
    tell told told, think thought thought, throw threw thrown, wake woke woken, wear wore worn, weep wept wept, win won
    won, write wrote written""".split(","),
    )
}
REGULAR_VERBS = """ache ask bake balance bang beam beg believe blame blink blush bounce brush bump call care carry
    change chase cheat cheer chew chirp chop clap climb close collect cough count cover crack crawl creak crouch crush
    cry curl dance dive drag dream drip drop drum dry dust empty explore feast fetch fill fix float fold follow free
    frown gallop gasp gather giggle glow glue grab grin groan growl guess guide hammer hand hate help hobble hop hope
    howl hug hum hunt hurry iron join juggle jump kick kiss knead knock land laugh leap learn lick lift like limp listen
    live lock long look loosen love lower march matter measure melt mend meow miss mix mop move mumble munch need nod
    notice nudge open pack pad paddle paint pass pat patter peek peel peep peer pet pick pile place plan plant play
    point poke polish pop pound pretend promise pull purr push race rain rake reach remember repair rest rinse rock roll
    row rub rush rustle sail save scare scrape scratch scrub search share shout sigh sip skip slip smell smile sniff sob
    sort sound splash squash squeak squeeze stack stamp stare start stay step stir stomp stop storm stretch stroke
    stumble surprise swap talk tap tease thank thump tidy tie tip tiptoe toss trace tremble trip trot trudge try tuck
    tug tumble turn twirl unlock untie use visit wail wait walk wander want wash watch water wave whisper whistle wink
    wipe wish wobble work wrap wriggle yawn yell""".split()
VERBS = tuple(IRREGULAR_VERBS) + tuple(REGULAR_VERBS)

PRONOUNS = tuple(
    """i you he she it we they me him her us them my your his its our their mine yours hers ours theirs
    myself yourself himself herself itself ourselves themselves""".split()
)

# ---------------------------------------------------------------------------------------------------------------------
# Plots. A template is text in which
#   (a|b|c)    is one of these, drawn anew each time: paraphrases of one thing
#   [a|b|c]    is one of these, the same one in every bracket with as many branches: what belongs together in this story
#   {toy}      is drawn once per story from KINDS, and then stays; {toy2} is another one; {Toy} begins with a capital
#   {sad}      is one of the PHRASES, expanded anew each time
#   {toy.adj}, {fruit.s}, {play.ed}, {play.ing}, {place.at} are forms of it
#   {he} {him} {his} {himself} are the hero; {friend} is of the other sex, so {he2} {him2} {his2} is never ambiguous
#   @Twist     marks that this branch makes a feature true
# A line that is not indented further begins a paragraph. Sentences get their capitals, and "a" its "an", at the end.

PHRASES = {
    "once": """(Once upon a time,|Once upon a time,|Once,|Not long ago,|Not so long ago,) there (was|lived) a {trait}
        {kind} (named|called) {hero}.|There once was a {trait} {kind} (named|called) {hero}.|
        {hero} was a {trait} {kind} who lived (near|not far from|close to|just behind) the {home}.|
        In a {cozy} house (near|by|beside) the {home} (lived|there lived) a {trait} {kind} (named|called) {hero}.""",
    "oneday": "(One|On a|One) {weather} {time},",
    "sad": """{hero} felt {sorry}.|{hero} felt {sorry} and {sorry2}.|
        {hero}'s eyes (filled with tears|grew wet|began to sting).|
        (Big|Hot|Two big) tears (rolled|ran|slid|dripped) down {hero}'s (cheeks|nose|face).|
        {hero} (wanted|was ready) to cry.|{hero}'s heart felt (heavy|cold|sore).|{hero} (hung|lowered) {his} head.|
        {hero} sat down and (sobbed|wept|cried).|{hero}'s (lip|chin) began to tremble.""",
    "glad": """{hero} (smiled|grinned|beamed) (happily|from ear to ear).|
        {hero} (laughed|giggled) (with joy|happily|out loud).|
        {hero} (clapped|jumped|danced|hopped|twirled|cheered) for joy.|{hero}'s (eyes|cheeks) (shone|glowed) with joy.|
        {hero} had never been so {merry}.|{hero} was so {merry} that {he} (sang|hummed a tune|clapped {his} hands|
        turned a somersault).""",
    "idea": """Then {hero} had (an idea|a good idea|a clever idea|a bright idea).|
        {hero} thought (hard|for a while|and thought), and then {he} (smiled|had an idea|jumped up).|
        An idea (popped into|jumped into|came into) {hero}'s head.""",
    "hug": """{Grownup} gave {hero} a (big|warm|tight|long|gentle) hug.|{Grownup} (hugged|kissed|squeezed) {hero}.|
        {Grownup} (took|lifted|pulled) {hero} into a (warm|tight|gentle) hug.|
        {Grownup} (stroked|patted|kissed) {hero}'s head.""",
    "night": """That night, {hero} (slept (well|soundly|deeply)|fell asleep (at once|with a smile|quickly)|
        dreamed (sweet|happy|lovely|pleasant) dreams|was (tired|sleepy) but (happy|glad)).""",
    "sharing": """@MoralValue (They|{hero} and {friend}) (learned|knew now|found out) that
        (sharing is more fun than winning|a toy is only half as good alone|a friend is worth more than a toy|
        taking turns is better than pulling).""",
}

PLOTS = {  # the first paragraph is the summary, the others are the story
    "lost": """
    {hero} loses {his} {toy} and finds it [with a playful puppy|beside the path|at the well|in {his} own bag].
    {once} ({He} had a {toy.adj} {toy} and (took|carried) it everywhere.|{His} favorite thing was a {toy.adj}
        {toy}.|Of all {his} things, {he} loved {his} {toy.adj} {toy} best.) (Every night, the {toy} stood beside
        {his} bed.|{hero} and the {toy} were never far apart.|When {hero} went out to {play}, the {toy} came along.)
    {oneday} {hero} (took|carried|brought) the {toy} to the {place.adj} {place}. [@Foreshadowing A {puppy} puppy
        (trotted|ran|padded|crept) behind {him} and (sniffed|licked|nudged) the {toy}.|@Foreshadowing {He} did not
        (see|notice|feel) the (little|small|tiny) hole in {his} bag.|@Foreshadowing On the way, {he}
        (stopped|rested) at the well and (drank|sipped) some (cool|cold|fresh) water.|@Foreshadowing {He}
        (packed|put|pushed) it deep into {his} bag to keep it safe.] (At the {place}, {he} (began|started) to
        {game}.|First {he} {game.ed}.|For a while {he} (sat|lay) in the (sun|shade).) Then {he} (reached for|looked
        for|wanted) the {toy}. (It was gone!|It was not there!|The {toy} was gone!)
    "(Where is my {toy}?|Oh no, my {toy}!|I lost my {toy}!)" (cried|gasped|wailed) {hero}. {He}
        (looked|searched|peeped) behind the {spot} and (around|beside) the {spot2}. (There was no {toy}.|{He} found
        (an old shoe|a {bug.adj} {bug}|three ants), but no {toy}.) {sad} {His} friend {friend} (came running|heard
        {him}|saw {him}). "(Don't cry|Don't worry|Cheer up)," said {friend}. "(We will find it|Let's look together|I
        will help you look|Four eyes see more than two)."
    [Just then they heard a (happy|short|loud) bark. Behind the {spot3} lay the puppy, with the {toy} between its
        paws! It only wanted (a friend|somebody) to play with. {hero} (laughed|had to laugh) and (threw|tossed) a
        stick, and the puppy (fetched it|chased it|ran after it).|They walked back (along|down) the path, (step by
        step|slowly). There in the (grass|dust), beside a {spot3}, lay the {toy}! "It fell through (this|the) hole
        in your bag," said {friend}. At home {hero} (sewed up|mended|closed) the hole.|"Where did you stop on the
        way?" asked {friend}. "At the well!" (cried|shouted) {hero}. They (ran|raced|hurried) back, and there stood
        the {toy} on the (edge|wall) of the well, just where {hero} (forgot|left) it.|"What is in your bag?" asked
        {friend}. "It looks (heavy|full)." {hero} (opened|emptied) the bag, and out (came|fell) the {toy}! @Twist
        {He} had carried it on {his} back all the time. They (laughed|giggled) until (their sides hurt|they
        cried|they fell over).] (After that, {hero} (held|hugged) the {toy} tight all the way home.|{hero}
        (dusted|kissed|wiped) the {toy} and took it home.|"Thank you, {friend}," said {hero}, and they played with
        the {toy} all {time}.) ({night}|)""",
    "quarrel": """
    {hero} and {friend} quarrel over a {toy}, [and it breaks, but they mend it|and it gets dirty, but they make
        up|and {friend} goes home, but they make up|and in the end nobody can play with it].
    {once} {His} best friend was (a {kind2} (named|called) {friend}|{friend}, a {trait2} {kind2}). (Every|Nearly
        every) day they (went out to {play}|{play.ed} together|{play.ed} and {play2.ed}).
    {oneday} {hero}'s {grownup} gave them (one|a) {toy.adj} {toy} to share. "(I want the {toy} first|Me first|It is
        my turn first)!" (cried|said|shouted) {hero}. "No, (I want it|me first|it is mine)!" (shouted|yelled|cried)
        {friend}. @Conflict {hero} (pulled|tugged) (hard|on one side), and {friend} (pulled|tugged) (harder|on the
        other side). [(Snap|Crack|Crunch)! A (piece|corner|bit) broke off the {toy}.|(Splash|Plop|Splat)! The {toy}
        (fell|dropped|flew) into a (deep|muddy|dirty|brown) puddle.|"Then I am going home!" said {friend}, and
        (marched|stomped|walked) away. {hero} (kept|had) the {toy}, but {he} had nobody to play
        with.|(Crash|Bang|Smash)! The {toy} broke into (ten|twenty|many) (little|tiny|small) pieces.]
    [They (looked|stared) at the broken {toy} (and were quiet|in silence). {sad} "I'm sorry," said {hero}. "(I
        pulled too hard|I was selfish|I should have shared)." "I'm sorry too," said {friend}. {hero}
        (fetched|found|got) the glue, and {friend} held the piece (tight|still|in place) until it was dry.|The {toy}
        was (brown|black) with mud, and so were they. {hero} looked at {friend}'s (muddy|dirty) nose and (began|had)
        to (laugh|giggle). "I'm sorry I pulled," {he} said. "I'm sorry too," said {friend}. They
        (washed|scrubbed|rinsed) the {toy} in a bucket and (dried it|let it dry) in the (sun|wind).|(Soon|After a
        while) it was (dull|boring|lonely) to play alone. {sad} {hero} took the {toy} to {friend}'s house and
        (knocked|tapped) on the door. "I'm sorry," {he} said. "You may have the {toy} first." {friend}
        (smiled|grinned). "I'm sorry I (shouted|yelled|ran off)," said {friend}.|"(This is your fault|You did
        this|You broke it)!" they both (shouted|cried|yelled). They tried to (fix|mend|repair) the {toy} with glue,
        with tape and with string. It was no use. {sad}]
    [(First|Now) {friend} (held|had) the {toy} while {hero} counted to (ten|twenty|fifty). Then it was {hero}'s
        turn.|Then they (found|made) a new rule: ten minutes for {hero} and ten for {friend}.|(Soon|Then) they
        (played|were playing) with the {toy} together, and nobody (pulled|shouted|pushed).|@BadEnding {hero} and
        {friend} (walked|went) home (alone|without a word), and (neither|nobody) had a {toy} any more.]
        [{sharing}|{sharing}|{sharing}|(@MoralValue {hero} learned too late that (two who pull will both lose|it is
        better to share than to pull).|There were no more games that (day|week).|The house was very (quiet|still)
        that (night|evening).)]""",
    "hurt": """
    {hero} finds a hurt [{bird}|{wild}] and takes care of it until it is well.
    {once} {oneday} {he} heard a (faint|weak|soft|tiny) (cry|sound|squeak) {place.at}. (Behind|Beside|Next to) a
        {spot.adj} {spot} (sat|lay) a [{bird.adj} {bird}|{wild.adj} {wild}]. (Its [wing|paw] was hurt, and it could
        not [fly|run].|It could not [fly|run], for its [wing|paw] was hurt.|It had a (sore|hurt|bleeding)
        [wing|paw].) {hero} (felt sorry for it|knelt down beside it|wanted to help). {He} (wrapped|tucked) the
        [{bird}|{wild}] in {his} {garment.adj} {garment} and (carried|took) it home.
    {His} {grownup} put a (clean|soft|white) bandage on the [wing|paw]. It needed (rest|sleep), food and
        (time|quiet). {hero} made a (bed|nest) of (straw|moss|hay|rags) in an old (box|basket|drawer). (Every|Each)
        day {he} brought [seeds and crumbs|nuts and berries] and a (bowl|dish|saucer) of water. (After two
        weeks|Slowly|Day by day), the [{bird}|{wild}] grew (strong|healthy) again.
    But (now|then) it (sat|stayed) at the window (all day|every day|for hours) and looked at the
        (trees|woods|hills). (It missed its home|It wanted to go home|It was time to let it go), and {hero} knew it.
        {hero} (wanted|longed|wished) to keep the [{bird}|{wild}]. ({sad}|) But {he} (opened|unlocked) the
        (door|window). The [{bird} flew|{wild} ran] (off to the trees|out into the sun), and {hero} waved
        (goodbye|until it was gone).
    (A week later|The next spring|One morning|Some days later), (something tapped|there was a tap|{hero} heard a
        sound) at the (window|door). The [{bird}|{wild}] was back, and beside it were (two|three|four)
        (tiny|little|small) [chicks|babies]! (They ate crumbs from {hero}'s hand.|It had brought a {treasure.adj}
        {treasure} for {hero}.|{glad}) (@MoralValue {hero} (learned|knew now) that (a friend who is free can still
        come back|you must let a friend go when it is time|kindness always comes back).|)""",
    "noise": """
    {hero} hears a strange noise at night and finds that it is only [the cat|a branch|{his} {grownup}].
    {once} (By day|All day long) {he} was (never afraid|brave|bold), but (the dark was another thing|at night it was
        different|the dark frightened {him}). So {he} (always slept|went to bed) with {his} {toy.adj} {toy} (in
        {his} arms|close to {him}|beside {him}).
    One (dark|stormy|windy|cold|black|rainy) night, [@Foreshadowing nobody could find the (old|fat|striped|sleepy)
        cat. "(It will come back|It must be outside)," said {his} {grownup}.|@Foreshadowing the wind
        (shook|bent|rocked) the tall tree beside the house. "(What a storm|Hear the wind)!" said {his}
        {grownup}.|@Foreshadowing {hero} was too (full|sleepy) to finish {his} {treat}. "(I will put|Let's leave) it
        in the kitchen," said {his} {grownup}.] {hero} (crawled|climbed|jumped) into bed and (shut|closed) {his}
        eyes. Then {he} heard it. [(Scratch, scratch|Scrape, scrape)! It came from the closet.|(Tap, tap|Knock,
        knock)! It came from the window.|(Clink, clink|Bump, bump)! It came from the kitchen.]
    {hero} (pulled|drew) the blanket over {his} (head|ears|nose). "Is it a (monster|ghost|giant|witch)?" {he} asked
        the {toy}. {His} heart (beat|thumped|pounded) like a drum. "(I must look|I want to know|We will look
        together)," said {hero} at last. {He} (took|held|grabbed) the {toy} and a (candle|lamp|lantern) and
        (tiptoed|crept|walked) to the [closet|window|kitchen].
    {He} (counted to three|held {his} breath|took a deep breath) and (looked|peeped). [Two (green|yellow|bright)
        eyes (looked|stared|blinked) back. @Twist "Meow!" It was the cat, locked in the closet by mistake!|A
        (long|thin) (arm|finger) (moved|swung) behind the glass. @Twist But it was only a branch of the tall tree,
        tapping in the wind!|A (tall|big|round|crooked) (shape|shadow) stood by the table. @Twist "Oh!" said
        {Grownup}, with a mouth full of {treat}.] ({hero} (laughed|giggled) until the {toy} (shook|fell down).|"You
        (gave me a fright|scared me)!" (said|cried) {hero}.) [The cat (curled up|purred) at {his} feet until
        morning.|{hero} (waved|said good night) to the tree and went back to bed.|They (sat down|laughed) and shared
        the rest of the {treat}.] (@MoralValue {hero} (learned|found out) that (most monsters are gone when you look
        at them|being brave means looking even when you are afraid|the dark hides nothing bad).|The {toy} was not
        afraid any more, and {hero} was not afraid either.|)""",
    "fear": """
    {hero} is afraid to [swim|ride a bicycle|go down the tall slide] but learns it step by step.
    {once} {He} could {play} and {play2}. But {he} could not [swim|ride a bicycle|go down the tall slide]. [The lake
        (was|looked) so deep and (cold|dark).|The bicycle (wobbled|shook) (so much|like a leaf).|The slide was as
        (high|tall) as a (house|tree).] {hero} was (afraid|scared|frightened) of it.
    {oneday} {his} friend {friend} (called|shouted), "(Come on|Come along|Come here), {hero}! It's
        (fun|great|easy)!" {hero} shook {his} head. "(I have a tummy ache|My tummy hurts|I am too tired)," {he}
        (said|mumbled). (It was not true.|That was not true.|It was only a fib.) {He} (sat on|stayed on) a
        (bench|wall|log) and watched {friend} [splash and dive|ride round and round|go down again and again]. {sad}
    {His} {grownup} sat down (next to|beside) {him}. "(I was afraid too once|When I was small, I was scared too|It
        looked hard to me too)," said {Grownup}. "(I began with one small step|I took one step at a time)." (So they
        tried it together.|{Grownup} (reached|held) out a hand, and {hero} took it.|That sounded (good|easy) to
        {hero}.)
    The first day, {hero} only [put {his} (toes|feet) in the water|sat on the bicycle|climbed (two|three|four)
        steps]. The (next|second) day, [{he} went in up to {his} (knees|tummy)|{he} rode, and {Grownup} held on|{he}
        climbed up to the middle]. Then [a wave (went over|hit) {his} head|{he} (fell off|tipped over) and
        (scraped|bumped) {his} knee|{he} sat at the top, but {his} knees (shook|trembled)]. {hero} (nearly gave
        up|wanted to stop). "(One more|Just one more|One last) try," {he} said.
    (And then|At last|Then) {he} [(kicked|paddled) with {his} legs, and the water (held|carried) {him}|rode on
        alone, for {Grownup} had let go|(closed|shut) {his} eyes and let go]. [{He} was swimming!|{He} was
        riding!|Whoosh! What a ride it was!] "(Look at me|I did it|I can do it)!" (shouted|yelled|cried) {hero}.
        ({friend} (clapped|cheered|whistled).|{glad}) (@MoralValue {hero} learned that (big fears get smaller step
        by step|you can be brave and afraid at once|small steps lead a long way).|Now {hero} and {friend} [swim in
        the lake|ride together|race to the slide] every (day|week).|)""",
    "promise": """
    {hero} promises to [water the {flower}|feed the {farm}|keep the gate shut] but forgets it, and [sets it right in
        time|it ends badly].
    {once} {He} (meant well|was good at heart), but {he} (often forgot|forgot many) things. (There was always
        something (new|better) to do.|{His} head was full of (games|dreams|songs).|Even {his} {garment} was lost
        every week.)
    {oneday} {his} {grownup} had to go to the {home2}. "{hero}, [will you water my {flower.adj} {flower}|will you
        feed the {farm.adj} {farm} at noon|will you keep the gate shut, so that the {farm} stays in]?" asked
        {Grownup}. "I promise," said {hero}. But then {friend} came by. "(Come|Come on), let's {play}!" said
        {friend}. "(Only for a minute|Just a little while)," said {hero}. They {play.ed}. They {play2.ed}. {hero}
        forgot (the [{flower}|{farm}|gate]|{his} promise|what {he} had to do).
    When the sun (went down|was low), {hero} (stopped|stood still|jumped up). "Oh no, my promise!" {He}
        (ran|raced|rushed) home (as fast as {he} could|like the wind|without a stop). [The {flower} (hung its
        head|was pale and limp), and its leaves were (dry|yellow).|The {farm} (cried|called) for food, and its
        (dish|bucket) was empty.|The gate (was|stood) wide open, and the {farm} was gone.] ({sad}|) [[{hero}
        (gave|brought) it (cool|fresh) water, one can after the other.|{hero} (fed|brought) it the best food and
        (scratched|stroked|petted) its ears.|{hero} followed the (prints|tracks) in the mud, all the way to the
        {place}.] [Slowly, slowly, the {flower} lifted its head.|The {farm} (ate and munched|chewed), and then it
        (rubbed|pushed) its nose on {his} arm.|There stood the {farm}, behind a {spot}, and (ate|chewed) grass. {He}
        led it home.]|[{hero} (gave|brought) it (cool|fresh) water, but it was too late. The {flower} was
        dead.|Before {he} could bring the food, the {farm} (broke|jumped over) the fence and ran (away|off).|{hero}
        (called|looked) for it until it was (dark|night), but {he} never found the {farm}.]]
    When {Grownup} came home, {hero} told the whole (story|truth). "I am (very|so) sorry," {he} (said|whispered).
        [{Grownup} nodded. "(You were late, but you set it right|I am glad that you did not give up)," said
        {Grownup}.|@BadEnding {Grownup} (sighed|said nothing) and (turned away|looked very sad). {hero}
        (cried|sobbed) in bed that night.] (@MoralValue (From then on|After that|From that day), {hero} kept {his}
        (promises|word) first and played (after|later).|@MoralValue {hero} learned that a promise (must be
        kept|cannot wait).|{hero} never forgot that day.)""",
    "truth": """
    {hero} breaks a {fragile}, hides it, and then tells {his} {grownup} the truth.
    {once} {His} {grownup} had (one|a|only one) rule: (no ball games|no balls|never play ball) (in the
        house|inside|in this room). (On the (table|dresser|cupboard)|By the window|High on a shelf) stood
        {Grownup}'s (favorite|best|finest|beautiful) {fragile}.
    One (rainy|wet|gray|stormy|foggy) {time}, {hero} was (bored|alone in the room). {He} (threw|kicked|bounced)
        {his} {color} ball, (higher and higher|harder and harder). (Crash|Smash|Bang)! The {fragile} lay in pieces
        on the floor. {hero} (turned pale|stood very still). (Quickly|At once), {he} (hid|pushed|swept) the pieces
        (under|behind) the {nook2}.
    (At supper|At dinner|That evening), {Grownup} asked, "(Who has seen|Where is|What became of) my {fragile}?"
        {hero} looked (at {his} feet|at {his} plate|out of the window). "Maybe the [cat|dog|kitten] broke it," {he}
        (mumbled|said|whispered). "Then the [cat|dog|kitten] must sleep (in the shed|outside|in the barn)," said
        {Grownup}. That night, {hero} could not sleep. Outside, the [cat meowed|dog howled|kitten cried] in the
        (cold|rain|dark).
    At last {hero} got up and (went|crept|tiptoed) to {Grownup}. "(It was me|I did it)," {he} said. "I broke the
        {fragile}, and I hid it." {He} waited for (angry|hard|loud) words. (@Twist But {Grownup} said, "I (know|knew
        it), {hero}. I (found|saw) the pieces, and I (waited|hoped) for you to tell me."|But {Grownup} only said,
        "(Thank you for telling|I am glad you told) me. That was (brave|not easy).") ({hug}|)
    (Right away|First), {hero} (let|brought) the [cat|dog|kitten] in and gave it (warm milk|a big supper|the best
        pillow). (The next day|In the morning), they (glued|stuck) the {fragile} together (again|with care|piece by
        piece). (@MoralValue {hero} (learned|knew now) that (the truth is lighter than a lie|a lie hurts more than a
        broken {fragile}|it is brave to tell the truth).|And {hero} took {his} ball outside.|It had many cracks, but
        {Grownup} (loved|liked) it even more.)""",
    "build": """
    {hero} builds [a tree house|a raft|a cart|a bridge], and it works only when {friend} helps.
    {once} (More than anything|Most of all), {he} wanted to build [a tree house|a raft|a cart|a bridge over the
        stream]. {oneday} {he} (gathered|collected|found) (old boards|some planks|a pile of wood), a (bag|box|jar)
        of nails and a (long|strong|thick) rope. "(May|Can) I help you?" asked {his} friend {friend}. "(No, I can do
        it alone|No, thank you|I need no help|No, this is mine)," said {hero}. {He} (sawed|measured) and
        (hammered|tied) all {time}. (At last|In the evening) the [tree house|raft|cart|bridge] was (done|ready).
    (Proudly|Full of pride), {he} [climbed up|pushed it into the water|rolled down the hill in it|stepped on it].
        (Creak|Crack|Oh dear)! [The floor (tipped|bent), and {he} (slid|fell) into a bush.|The raft (tipped
        over|sank), and {he} was wet to the (ears|skin).|One wheel (came|rolled) off, and {he} (landed|fell) in the
        grass.|One board (broke|slipped), and {he} fell into the stream.] ({sad}|) "It's (ruined|no good)," {he}
        (said|groaned|sighed).
    {friend} did not laugh. {He2} (walked|went) all around the [tree house|raft|cart|bridge] and (looked|peered) at
        it (closely|from below|from all sides). "[It needs a post here|It needs two more barrels|The wheel needs a
        pin|It needs a rope on each side]," said {friend}. "(Shall we try it together?|Let's do it together.)"
        {hero} (nodded|smiled|thought about it). "(Yes, please|All right|I need your help)," {he} said. {hero}
        (held|lifted) the wood, and {friend} (hammered|tied the knots|worked with the nails).
    (This time|Then|Now) they [climbed up|pushed off|rolled down the hill|walked over it] together. The [tree house
        held|raft floated|cart rolled and rolled|bridge held]! "(We did it|It works|Hooray)!"
        (cried|cheered|shouted) {friend}. [They ate {fruit.adj} {fruit.s} in the tree house and looked out over the
        {place}.|They floated (past|by) the {place} and waved to the (ducks|fish).|They (pulled|took) the cart up
        the hill again, ten times more.|(Soon|The next day) even {hero}'s {grownup} (walked|went) over the bridge.]
        (@MoralValue {hero} learned that (two heads are better than one|it is wise to ask for help|good work is
        better with a friend).|They wrote both their names on it.|On the front they painted a {color} star.)""",
    "lost in the crowd": """
    {hero} gets lost in the [forest|market] but remembers what {his} {grownup} said and is found.
    {once} {He} (never sat still|wanted to see everything|asked questions all day long). {oneday} {hero} and {his}
        {grownup} went to the (big|busy|old|wide) [forest|market]. "(Stay|Keep) close to me," said {Grownup}.
        "@Foreshadowing If you (ever get|are) lost, (stay where you are|sit down and wait), and sing (our|your)
        song."
    [A {color} {flyer} flew by. {hero} (followed|ran after) it, (past|around) a {spot} and (under|over) a
        log.|Somebody played a {instrument}. {hero} (followed|ran after) the (music|sound), (past|around) the carts
        and the {fruit.s}.] When {he} (looked|turned) around, {Grownup} was not there. "{Grownup}! (Where are
        you|Can you hear me)?" (called|shouted|yelled) {hero}. (First {he} ran to the left, then to the right.|{He}
        ran this way and that way.|{He} ran back, but that was wrong too.) (Now {he} was even more lost.|It did not
        help.|Everything looked the same.|{sad})
    Then {he} (remembered|thought of) the words. {He} sat down on a [stump|step] and sang {his} song, (first softly
        and then loudly|as loudly as {he} could|in a small, brave voice). [A {bird.adj} {bird} (sat beside|flew to)
        {him} and (sang|chirped) along.|A {helper.adj} {helper} stopped. "I am waiting for my {grownup}," said
        {hero}. "(Then I will wait with you|I will stay with you|Then I will sing too)," said the {helper}.]
    (Then|At last) {he} heard a (voice that {he} knew well|well-known voice|voice, and {he} knew it at once).
        "{hero}! I heard (you|your song)!" (called|cried) {Grownup}. {hug} "I'm sorry (I ran off|that I left you),"
        said {hero}. ("And I am (glad|proud) that you (remembered|stopped and sang)," said {Grownup}.|) (They walked
        home hand in hand.|All the way home they sang together.|All the way home, {hero} did not let go once.)
        (@MoralValue {hero} learned (that it is wise to stay close|to keep calm when {he} is lost|that good advice
        is a good friend).|)""",
    "share": """
    {hero} shares {his} {treat} with a {bird} and a {wild}, and later they help {him}.
    {once} {oneday} {his} {grownup} gave {him} a {treat.adj} {treat} for the long (walk|way) to {friend}'s house.
        (Soon|By a {spot}), {he} met a {bird.adj} {bird}. "May I have (a crumb|a bite|a piece) of your {treat}?"
        asked the {bird}. "(Of course|Yes, you may|Here you are)," said {hero}, and (broke off a piece|gave it
        some|shared it gladly). (A little later|Behind the next {spot2}|Further on) sat a {wild.adj} {wild}. "I (had
        no breakfast|have eaten nothing) today," it (sighed|said). The {treat} was (small|not big) now. But {hero}
        (broke it again and gave half to|gave half of it to|shared it once more with) the {wild}. "(@Foreshadowing I
        will not forget this|@Foreshadowing One day I will help you|You are very kind)!" said the {wild}.
    [Then fog (came up|rolled in), (thick|gray) and (cold|wet).|Then a storm (came up|began), and the sky (was|grew)
        black.|Then it (was|grew) dark, for the way was long.] {hero} could not see the path. ({sad}|) "(Help!|I am
        lost!|Is anybody there?)" {he} (called|cried|shouted). The {bird} (heard|knew) {his} voice. "(I can see the
        path from above|I know the way|Follow me)," it said. The {wild} came too and (walked|ran) ahead.
    (Step by step|Slowly|Together), they (led|brought|guided) {hero} to {friend}'s (door|house|gate). "(Why are you
        so good to me|Why did you help me|How can I thank you)?" asked {hero}. "(You shared your {treat} with us|You
        were good to us first|You helped us too)," said the {bird}. {friend} (let|called) them all in, and they
        (ate|had) (hot|warm) soup by the fire. (@MoralValue {hero} learned that (kindness comes back|what you share
        is never lost|a small kindness can grow big).|{glad}|There was a {treat2} for everyone too.)""",
    "rain": """
    Rain spoils {hero}'s [picnic|boat trip|camping trip], so {he} has it in the house.
    {once} All week {he} (waited for|looked forward to|talked about) the [picnic {place.at}|boat trip on the
        lake|camping trip in the woods]. (@Foreshadowing The evening before, (gray|dark|heavy) clouds (hung|stood)
        over the {home2}. "They will (pass|go away)," said {hero}.|In bed, {he} was too (excited|happy) to
        sleep.|{He} (packed|filled) the basket with {treat.s} and {fruit.s}.)
    In the morning, {hero} (ran|jumped|hurried) to the window. Rain! It (drummed|splashed|pattered) on the
        (roof|window|street). "(We can't go today|We must stay at home|We must wait)," said {his} {grownup}. "(It's
        not fair|I hate rain)!" (cried|shouted) {hero}, and stamped {his} foot. ({sad}|)
    But then {he} saw the [big {color} blanket|bath tub|four chairs] (in the corner|by the wall). {idea} "(Who needs
        the sun|Why wait for the sun)?" {he} (said|asked). "We'll have the [picnic|boat trip|camping trip] (here|in
        the house)!" {He} [spread the blanket on the floor|put a broom in the tub for a mast|hung a (sheet|blanket)
        over the chairs for a tent]. Soon {his} friend {friend} (knocked at the door|came too), with a wet {garment}
        and a (big|wide) smile.
    [They sat on the blanket and ate {treat.s}. The {toy} was (a hungry bear|the queen of the ants), and {friend}
        fed it crumbs.|They sat in the tub and (rowed|sailed) with two spoons. The {toy} was the (captain|pirate),
        and the rug was full of (sharks|whales).|They crawled into the tent and ate {treat.s}. The {toy} kept watch,
        and the (rain|wind) outside was a (lion|wolf).] They (laughed|giggled|played) (until their tummies hurt|all
        {time}|for hours). When the rain stopped, (a rainbow stood over the {home2}|nobody noticed|{Grownup} had to
        tell them). "(I hope it rains tomorrow too|Let it rain again|I like rain now)!" said {hero}. (@MoralValue
        {He} learned that (you can make your own sunshine|a good day does not need good weather|a new plan can be
        the best plan).|{night})""",
    "gift": """
    {hero} has no money for {his} {grownup}'s birthday, so {he} makes [a picture|a necklace|a clay bowl].
    {once} {His} {grownup}'s birthday was (near|only three days away|coming soon), and {hero} (wanted to
        give|needed) a present. But (there was only|{he} had only|{he} found only) (one coin|a penny|a button) in
        {his} (money box|piggy bank|pocket). ({sad}|)
    {idea} "I will [paint a picture|make a necklace|make a clay bowl]," {he} said. Every (day|morning), {he}
        (hid|worked) in the (shed|barn|attic). "What are you doing in there?" asked {Grownup}. "(Nothing|It's a
        secret|You will see)!" (called|said) {hero}. [But then the red paint was (gone|used up). {He}
        (squashed|crushed) some berries, and their juice was (redder|even better).|But then the string (broke|tore),
        and all the beads (rolled|jumped) under the {nook}. {He} (crawled|went) after them and found every one.|But
        then the clay (cracked|fell apart). {He} mixed it with (more|new) water and began again.] (It took|{He}
        needed) (two more days|a long time), but {hero} (did not give up|kept on|did not stop).
    (On the birthday|Then the day came, and|At last it was the day, and) there were (big|tall) boxes with
        (silk|{color}) ribbons. {hero}'s gift was wrapped in (an old newspaper|brown paper|a clean sock). {He}
        (blushed|bit {his} lip|was nervous). "(It is only small|I made it myself)," {he} (said|whispered). {Grownup}
        (opened|unwrapped) it (slowly|with care).
    "Oh, {hero}, this is the (best|finest|loveliest) gift of all!" said {Grownup}. "(You put your love in it|You
        made it with your own hands)." ({hug}|) [The picture hung|{Grownup} wore the necklace|{Grownup} put the
        bowl] [over the (bed|sofa|table|desk)|that day and every Sunday|on the table with {fruit.s} in it].
        (@MoralValue {hero} learned that (a gift from the heart is worth more than gold|the best gifts cannot be
        bought|love makes a small gift big).|{glad})""",
    "greedy": """
    {hero} eats all the {treat.s} [and makes new ones for the guests|and misses the party].
    {once} {He} liked {treat.s} (more than anything|better than all other food). One {weather} {time}, {his}
        {grownup} (baked|made) (ten|twelve|twenty) {treat.adj} {treat.s} for a party. "(You may have one|Please take
        only one|They are for all of us)," said {Grownup}. "@Foreshadowing Too many will (hurt your tummy|make you
        ill)." Then {Grownup} went out to {chore}.
    {hero} ate one {treat}. It was so (good|sweet|soft)! "(One more won't matter|Nobody counts them)," {he}
        (thought|said), and (took|ate) another. (Then {he} ate a third and a fourth|Then came a third and a
        fourth|{He} took one more and one more). (Soon|Before {he} knew it), the plate was empty. "(Oh dear, what
        have I done|Oh no, what will {Grownup} say|What have I done)?" {he} (whispered|asked).
    [(Quickly|Then) {he} ran to {Grownup}. "I ate them all," said {hero}. "I am (so|very) sorry." {Grownup}
        (frowned|was not pleased). "Then we must bake (again|new ones), and you will help," said {Grownup}. {hero}'s
        tummy (hurt|ached), but {he} (mixed|stirred) the dough, (rolled|cut) it and washed (every pot|all the
        bowls). When {friend} and the others came, the {treat.s} were just (ready|done).|{His} tummy began to
        (hurt|ache|growl). It (hurt|ached) so much that {he} had to go to bed. Soon {friend} and the others came.
        Through the wall {hero} heard them (sing|laugh) and (dance|clap). "Where is {hero}?" asked {friend}. "(Ill
        in bed|In bed with a tummy ache)," said {Grownup}.]
    [{hero} (gave|handed) a {treat} to (each guest|everybody) and took none (for {himself}|at all). "(Aren't you
        hungry|Don't you want one)?" asked {friend}. "(Not today|I had mine)," said {hero}, and {Grownup}
        (winked|smiled).|@BadEnding There were no {treat.s} for {him}, no games and no songs. {sad} When {he} could
        get up (again|at last), the party was over and (the house was quiet|all the guests were gone).] (@MoralValue
        {hero} (learned|never forgot) that (enough is better than too much|greedy hands bring a sore tummy|what is
        for all is not for one).|)""",
    "seed": """
    {hero} plants a seed and waits for it, and at last it becomes a [big {flower}|huge {vegetable}].
    {once} {oneday} {his} {grownup} gave {him} a (tiny|small|flat|brown) seed. (Nobody knew what was in it|It was as
        dry as a stone|It did not look like much), and {hero} was curious. {hero} (dug|made) a hole (behind|beside)
        the {spot}, (put|dropped|laid) the seed in it and (covered it with|filled it with|patted down the)
        (earth|soil).
    (The next morning|Early the next day), {hero} ran to look. There was (nothing|only earth). {He} thought that
        (the seed was broken|it did not work|the seed was no good), and {he} (wanted to dig it up|fetched a
        spade|began to dig). But {Grownup} (told {him} to wait|asked {him} to wait), for (a seed is busy under the
        ground|a seed works where nobody sees it|good things need days and weeks). So {hero} (watered|visited) the
        seed every (day|morning) and (pulled out the weeds|chased away the {farm2}|waited).
    One night, [a (wild|fierce|great) storm came|a (hard|bitter) frost came|a hungry {farm} got out]. {hero} (woke
        up and thought of the seed|could not sleep). {He} (ran|hurried) out in {his} {garment} and [put a bucket
        over the place|covered the place with a blanket|chased it away with a broom]. In the morning, (there
        was|{he} found|{he} saw) a (tiny|small) green leaf (on the ground|between the stones|in the wet earth)!
        {glad}
    (All summer|Week after week), (the plant grew and grew|it grew taller and thicker|it grew leaf after leaf). [At
        last (it opened, and there was|there stood|they saw) a big, bright {flower}, (taller than {hero}|as big as a
        plate)!|At last there was a {vegetable} under its leaves, so big that {hero} could not (lift|carry) it
        alone!] [{hero} gave the (new|ripe) seeds to {friend}.|{friend} (came to help|helped to pull), and there was
        soup for (all|three days|everybody).] It was worth the (wait|work). (@MoralValue {hero} knew now that (good
        things need time|those who can wait get the best|patience makes things grow).|)""",
    "shy": """
    {hero} is shy and hides from the others, but there {he} meets {friend}, who is hiding too.
    (Once upon a time, there was|There once was|Once there was) a (shy|timid|quiet|bashful|lonely) {kind}
        (named|called) {hero}. {He} was new in town, and (nobody knew {him}|{he} had no friends yet). {His} {toy}
        was {his} only (friend|company).
    {oneday} {hero} took the {toy} to the {place}. Many others were there. They {game.ed} and {game2.ed}. {hero}
        (wanted|longed) to (play with them|join them|ask them), but the words (stuck in {his} throat|would not
        come). {He} (turned|went) red and (hid|crept) behind a {spot.adj} {spot}.
    But (somebody was there already|the place was taken)! A {kind2} (sat|crouched) there and (hugged {his2}
        knees|chewed on a straw|drew in the dust). "Are you (hiding|hiding here) too?" asked {hero}. "Yes,"
        (whispered|said) the {kind2}. "@Twist I am too (shy|afraid) to ask them." {hero} (stared|was surprised), and
        then {he} (laughed|smiled). "(I thought I was the only one|So am I|Then we are two)! (My name is|I am)
        {hero}." "(My name is|I am) {friend}," said the {kind2}.
    {hero} held out {his} {toy}. "(Do you want|Would you like) to play with my {toy}?" {friend} (nodded|smiled), and
        they (played|began to play). (Soon|After a while) the others (came closer|heard them laugh). "(May we join
        you|Can we play too)?" they asked. "(Yes|Of course)!" (said|cried) {hero}. From then on, (they were|{hero}
        and {friend} were) best friends. (If somebody sat alone behind the {spot}, they went to say
        hello.|@MoralValue {hero} learned that (others are often shy too|one kind word can make a friend|you only
        have to begin).|{night})""",
    "race": """
    {hero} wants to win the race, [but stops to help {friend}|but cheats and comes last].
    {once} {He} was the fastest (runner|{kind}) (for miles around|of all|in town). Every (year|spring|summer), there
        was a race (to the {place}|to the {home2} and back|around the {place}), and the winner got a {treasure.adj}
        {treasure}. ({hero} wanted it (badly|very much).|) [So {he} ran (every morning|to school and back|up and
        down the stairs).|@Foreshadowing "(Mind|Watch out for) the swamp," said {his} {grownup}. "(Stay on|Don't
        leave) the path."]
    On the (big day|day of the race), the {helper.adj} {helper} (waved|lifted) a {color} flag. "(Ready, steady,
        go|One, two, three, go)!" (Off they went|They flew off like (birds|arrows)). (Soon|After a minute), {hero}
        was (ahead of|in front of) everybody, and only {friend} was (close|right) behind.
    [Then {he} heard a cry. {friend} had (tripped|stumbled) over a (root|stone) and held {his2} (knee|foot). {hero}
        looked ahead. There was the (goal|{treasure}), so near! {He} looked back. {friend} had tears in {his2} eyes.
        {hero} turned around. "(Run on|Go on), you will win!" said {friend}. "Not without you," said {hero}.|{hero}
        did not want to lose. {He} saw a (short|secret|narrow) way (between the trees|through the reeds). "(Nobody
        will see me|That will save time)," {he} thought, and (left the path|ran off the path|turned off). @Conflict
        "(That is not fair|That is cheating|Stay on the path)!" (called|shouted) {friend}. Squelch! {hero}
        (sank|stepped) into the swamp up to {his} (knees|tummy). {He} (pulled|kicked) and (pushed|wriggled), but
        {he} was stuck.]
    [{He} put an arm around {friend}, and they (limped|hobbled) along (together|side by side). They (came in|were)
        last of all. But the people (clapped|cheered) (louder|longer) for them than for the winner! {friend} made
        {him} a (medal|crown) of (paper|daisies). "You are (my|the real) winner," {friend} said. {glad}|@BadEnding
        (Far away|Behind the trees), {he} heard them (cheer|clap). {friend} had won the {treasure}. When {hero} came
        at last, (black with mud|without a shoe|muddy from head to toe), (nobody was there|the people had gone
        home). {sad}] (@MoralValue {hero} learned that [(a friend is worth more than a prize|helping is better than
        winning)|(a fair race is the only one worth winning|the short way can be the longest|cheating never
        wins)].|)""",
    "birthday": """
    {hero} thinks that everybody has forgotten {his} birthday, but there is a surprise party.
    {once} One morning, {he} (woke up|got up) (early|very early|before the sun), for it was {his} birthday! But
        {his} {grownup} only said, "(Eat your porridge|Good morning|Put on your shoes)." @Foreshadowing (Yet the
        house smelled of {treat.s}.|{Grownup} (quickly|hastily) shut the cupboard.|Something {color} stuck out from
        under the {nook}.)
    {hero} (went|walked|ran) to {friend}'s house. "(Do you know what day it is|What day is it today|Isn't today a
        special day)?" asked {hero}. "(Washing day|A windy day|No idea)," said {friend}, and (hid something behind
        {his2} back|turned red|shut the door). On the (road|street), {he} met the {helper}. "(No time|I have no
        time|I must run)!" (called|said) the {helper}, and hurried (off|on) with a (big|heavy|round) box.
    "They have (all|) forgotten me," (said|thought) {hero}. {He} sat down {place.at} and (threw stones|drew in the
        sand|looked at the clouds). ({sad}|) When the sun (went down|sank), {he} (walked|trudged|went) home
        (slowly|with slow steps). The house was (dark|black and silent|dark and still). {hero} (opened|pushed open)
        the door.
    "Surprise!" (shouted|cried|called) (many|twenty|a dozen) voices. @Twist (Lamps|Candles|Lights) (shone|glowed)
        everywhere. There were {Grownup}, {friend}, the {helper} and a mountain of {treat.s}! "It was so hard to
        (keep quiet|say nothing)," (laughed|said) {friend}. In the box was a {toy.adj} {toy}. "(I thought you
        forgot|You remembered)!" cried {hero}. "(Forget you? Never|How could we forget)!" said {Grownup}. They
        (danced|sang|feasted) until (midnight|the moon rose|the candles were small). (@MoralValue {hero} learned
        (not to give up on {his} friends|that friends do not forget).|{night}|{glad})""",
    "stuck": """
    {hero} lets go of {his} [balloon|kite] in the wind, [and the {helper} gets it back|and it is gone for good].
    {once} (One|On a) (windy|breezy|gusty|stormy) {time}, the {helper.adj} {helper} gave {him} a {color}
        [balloon|kite]. "@Foreshadowing Tie (the string|it) to your (wrist|arm)," said {his} {grownup}. "The wind is
        (strong|wild) today." "(I can hold it|My hands are strong|I won't let go)," said {hero}. {He} (ran|skipped)
        to the {place} with {his} friend {friend} and the [balloon|kite].
    (Whoosh|Whish)! A (gust|puff) of wind (came|blew) around the {spot}. The string (slipped|slid|ran) through
        {hero}'s fingers. (Up went|Away flew|Off went) the [balloon|kite], into the top of a (tall|high) (oak|pine).
        "(Come back|Oh no)!" (cried|yelled|wailed) {hero}. ({sad}|)
    (First {he} jumped|{He} jumped and jumped|{hero} stretched and jumped), but the tree was too (tall|high). (Then
        {he} poked with|{He} reached up with|{He} tried) a (stick|broom|rake), but it was too short. {friend}
        (climbed|stood) on {his} shoulders and (stretched|reached). (Bump|Oops|Thump)! They (fell|tumbled) (into the
        grass in a heap|down into the grass|in a heap).
    [(Just then|Then) the {helper} came by with a (long|tall|wooden) ladder. The {helper} climbed up
        (carefully|slowly) and (untied|freed|loosened) the string. This time {hero} tied it to {his} (wrist|arm)
        (with two knots|tightly). The [balloon|kite] (pulled and danced|danced high up), but it stayed. {glad}|(Just
        then the wind blew once more.|Then came another gust of wind.|But the wind was not done.) The [balloon|kite]
        came loose and (sailed|flew) (up and up|higher and higher|over the roofs). It was as small as (a coin|an
        apple|a plum), then as small as (a pea|a dot). @BadEnding Then it was gone (for ever|for good).
        "(Goodbye|Farewell), [balloon|kite]," said {hero} (softly|sadly). {He} walked home with (empty|cold) hands.]
        (@MoralValue {hero} learned (to listen to good advice|that a good knot is better than a strong hand|that it
        is wise to listen).|)""",
    "snowman": """
    {hero} builds a snowman, and [it melts in the house|a bit of it lasts until summer].
    {once} One (cold|frosty|white|icy|bitter) winter morning, {he} (looked out of the window|ran to the
        window|looked outside). The (whole|quiet) (town|village|street|garden) was (white|covered with snow)! {hero}
        and {his} friend {friend} (built|made) a snowman. It got (coal|buttons|nuts) for eyes, a (fat|long|big)
        carrot for a nose and a {garment.adj} {garment}. "(We will call it|Its name is) {snowman}," said {friend}.
    All day they (played|danced|ran) around {snowman}. They {snowplay} and {snowplay2}. In the evening, an icy wind
        (blew|howled). ["{snowman} must be cold," said {hero}. @Foreshadowing "Snow (likes|needs) the cold," said
        {his} {grownup}. "Leave it outside."|"(Will {snowman} stay|How long will {snowman} stay)?" asked {hero}.
        @Foreshadowing "Only until the (sun|spring) comes," said {his} {grownup}.]
    [But {hero} did not (listen|believe it). When all were asleep, {he} (crept|tiptoed) out with the (sled|cart).
        Bit by bit, {he} (pulled|dragged) {snowman} (into the kitchen|through the door|to the stove). "Now you are
        warm," said {hero}, and (went to bed with a smile|ran back to bed|yawned).|(A week later|One day), the sun
        was warm. Drip, drip, drip! {snowman} grew (thin|small|smaller), and the carrot fell (off|out). "{snowman}
        is going away!" (cried|said) {hero}. {idea} {He} made a (round|big|hard) snowball (from|out of) {snowman}'s
        tummy and (hid|put|locked) it in the freezer.]
    [In the morning, {he} (ran|hurried) to say hello. There was only a (puddle|pool) of water, a wet {garment} and a
        carrot. {sad} @BadEnding {snowman} was gone, and (no more snow fell that winter|the snow outside was gone
        too). (@MoralValue {hero} learned that (what is good for one can be bad for another|it is wise to
        listen).|"I only wanted to help," {he} (said|sobbed).|{friend} (helped to mop|mopped) the floor with {him},
        and they were (quiet|silent).)|(Then summer came, and it was hot.|Then came a hot day in summer.|Half a year
        went by, and it was hot.) {hero} (called|fetched) {friend} and (opened|went to) the freezer. @Twist (There
        was|In it lay|They still had) the snowball! "{snowman} is (still here|back)!" (laughed|shouted|cried)
        {friend}. They (made|built) a tiny snowman, as small as a (cup|{fruit}), with (a nut|a cherry) for a hat.
        ({glad}|When it melted, they were not sad, for snow comes again every year.|They were the only ones with
        snow in July.)]""",
    "sick": """
    {friend} is ill in bed, and {hero} finds a way to cheer {him2} up.
    {once} {His} best friend was (a {kind2} (named|called) {friend}|{friend}, a {trait2} {kind2}). {oneday} {hero}
        waited by the {spot}, but {friend} did not come. "{friend} has (a fever|a bad cough|red spots)," said {his}
        {grownup}. "You can't (go there|visit {him2}|play with {him2}), or you will (catch it|get it) too." {sad}
    {hero} went to {friend}'s house and looked up. {friend}'s (pale|sad|tired) face was behind the window. {idea}
        {He} (ran|hurried) home and (fetched|got) [a long string and a basket|some socks, buttons and thread|a big
        sheet of paper and some crayons].
    [{He} (threw|tossed) the end of the string up to the window, and {friend} (caught|tied) it. Then {friend} pulled
        up the basket. In it (lay|was) a {treat.adj} {treat} and a letter. "(Get well soon|I miss you)!" it
        said.|{He} (sewed|made) two (sock|funny) puppets, a (fat|greedy) king and a (rude|cheeky) {beast}. Under the
        window, the {beast} (stole|ate) the king's crown, and the king (ran|hopped) after it.|{He} drew {friend}'s
        face with a {beast.adj} {beast} on its head. Then {he} held it up to the window and danced (with
        it|around).] {friend} (laughed|giggled) so (hard|much) that {he2} forgot to (cough|be ill). "(More|Again)!"
        {he2} (called|shouted) through the glass.
    (Every day|Each day), {hero} came (back|again) with something new. (After a week|Slowly|Day by day), {friend}
        got better. "(You were my best medicine|You made me well|You are a true friend)," {he2} said. (But a few
        days later, {hero} (lay in bed|was ill) {himself}. Tap, tap! @Twist There was {friend} at the window, with
        [the basket|the puppets|a funny picture].|And they went to the {place} and {game.ed} until (supper|the sun
        went down).|They shared a {treat2} under the {spot2}.) (@MoralValue {hero} learned that (a laugh can help
        like medicine|a true friend finds a way).|{glad}|)""",
    "small": """
    {hero} is too small for everything, until {he} gets [a ring|a key|a {pet}] out of a narrow hole.
    {once} {He} was the smallest (in the family|of all|in the house). One {weather} {time}, everybody was busy, for
        there was a (feast|wedding|party) that night. "(May|Can) I help?" asked {hero}. "(You are too small|Not now,
        {hero})," said {his} {grownup}. "(Go and play|Maybe when you are bigger)."
    {hero} took {his} {toy} and sat (under the table|behind the {nook}|in a corner). "(It is bad|I hate) to be
        small," {he} told the {toy}. [@Foreshadowing "(Your ring is loose|Don't lose your ring)," the {helper} said
        to {Grownup}.|@Foreshadowing "(Don't lose the key|Be careful with the key)," the {helper} said to
        {Grownup}.|@Foreshadowing "Where is the {pet}?" the {helper} asked {Grownup}.] Then there was a
        (shout|scream|cry).
    [The ring (slipped|slid) off {Grownup}'s finger and (rolled|fell) through a crack in the floor!|The key
        (fell|dropped) behind the (old|stone) wall, and now the house was locked!|The (poor|little) {pet} was stuck
        in a (pipe|drain) (behind|under) the house and cried!] {Grownup} (tried|reached in) with (one arm|one
        hand|both hands), but (it did not fit|the hole was too narrow|that did not help). The {helper} (tried|poked)
        with a (stick|spoon|broom), but (it was too short|it broke|that was no use). "(Who can help us now|What
        shall we do|Is there no way)?" said {Grownup}.
    "I can!" (said|called|cried) {hero}. "I am small." {He} (lay|got) down on {his} tummy and
        (wriggled|squeezed|crawled) into the hole. {He} (stretched|reached), and (then|at last) {he} had it! Out
        came {hero} with the [ring|key|{pet}], (as black as a chimney|gray with dust|dusty but proud). @Twist "(What
        luck|How good) that you are (so|) small!" said {Grownup}. {hug} (@MoralValue {hero} learned that (you can be
        small and still help|everybody is good at something|even the small can do big things).|{glad}|{night})""",
    "swap": """
    {hero} swaps {his} old {toy} for a new {toy2} and is sorry, [but {friend} gives it back|but it is too late].
    {once} {He} had an old {toy}. It had (a scratch|a crack|a patch) and (one bent corner|a dent|no more shine), but
        {hero} (always slept beside it|had had it since {he} was a baby). {oneday} {his} friend {friend} came by
        with a {toy2.adj} {toy2}. It (smelled of paint|shone in the sun|was brand new). "(Let's swap|We can swap),"
        said {friend}. "(Give me your {toy}|I like your {toy})." (@Foreshadowing "Think first," said {hero}'s
        {grownup}. "You may miss it."|{hero} did not think long.) "(All right|Yes, let's swap)!" said {hero}.
    At first, the {toy2} was (fun|wonderful|great). But in the evening, [a (piece|part) came off it|{he} was afraid
        to scratch it|it was hard and cold in bed]. {hero} (reached for|looked for) the old {toy}. It was not there.
        ({hero} could not sleep.|{sad})
    (In the morning|As soon as it was light), {hero} (ran|raced|hurried) to {friend}'s house with the {toy2}.
        "(Please, can we swap back|Oh please, swap back|May I have the {toy} back)?" {he} (asked|begged). "I miss
        (my {toy}|it so much)." [{friend} (smiled|jumped up). "(I am so glad you came|Yes, yes)!" {he2} said.
        "@Twist I missed my {toy2} too!" They (swapped|changed) right there (on the step|at the door).|{friend}
        looked at {his2} (feet|shoes). "(I gave it|I sold it) to a (boy|girl) on the (bus|ship)," {he2} said. "I'm
        (so|very) sorry."]
    [{hero} (hugged|kissed) the old {toy}. "I will never (give you away|swap you) again," {he} (whispered|said).
        Then {hero} and {friend} (played|had fun) together, {hero} with the {toy} and {friend} with the {toy2}.
        {glad}|@BadEnding {hero} never saw the {toy} again. {He} put the {toy2} on a shelf and (did not play with
        it|let it gather dust). At night {he} still (thought of|missed) {his} {toy}.] (@MoralValue {hero} learned
        that (new is not always better|an old friend is better than a new thing|it is wise to think first).|)""",
    "garment": """
    {friend} laughs at {hero}'s funny {garment}, but then the {garment} saves the day.
    {once} For the winter, {his} {grownup} (knitted|sewed|made) {him} a {garment}. It was {color} with (big|fat)
        {color2} (spots|stripes|dots|stars), [and it was far too long|and it had a little bell|and it was as bright
        as a lamp]. "(It will keep you warm|I made it with love|@Foreshadowing One day it will be useful)," said
        {Grownup}.
    One (cold|cool|chilly|frosty|gray|windy) {time}, {friend} and the others were {game.ing} {place.at}. "(Look at
        that {garment}|What a silly {garment})!" (called|cried) {friend}. @Conflict "You look like a
        (clown|{beast}|parrot)!" All of them (laughed|pointed at {him}). {hero} turned red. ({sad}|) {He}
        (walked|went|crept) away and (sat down|hid) behind a {spot}.
    [Then there was a (crack|cry). {friend} had (slipped|slid|fallen) into a deep (hole|ditch)! {hero} (ran|raced)
        back, lay down and let the long {garment} hang down. "(Hold on to it|Grab my {garment})!" {he} called. {He}
        pulled and pulled, and up came {friend}.|Then (thick|white|gray) fog came, and nobody could see the path.
        "(I am lost|Help us)!" (cried|called) {friend}. {hero} (shook|swung) the {garment} until the bell rang.
        "(Follow the bell|Come to the bell)!" {he} called, and soon they all (were|stood) beside {him}.|Then it
        (grew|was) dark, and nobody could find the path. {friend} (sobbed|cried). But {hero}'s {grownup} came with a
        (lamp|lantern) and saw the bright {garment} from far away. "There you are, {hero}!" said {Grownup}, and
        (led|took) them all home.]
    {friend} looked (at {his2} shoes|down). "I'm sorry I laughed," {he2} said. "Your {garment} (saved me|is
        wonderful|is the best of all)." "(That is all right|I forgive you)," said {hero}. (@Twist The next
        (day|week), {friend} and all the others wanted (the same|such a) {garment}.|@MoralValue {friend} learned
        (not to laugh at others|that it is wrong to tease|that what looks funny can be good).|{glad})""",
    "thief": """
    Every night a {treat} is gone, and {hero} finds that a {wild} takes it for its babies.
    {once} {His} {grownup} (baked|made) the best {treat.s} in (town|the village). But one (day|morning), {Grownup}
        counted them and frowned. "One {treat} is gone," said {Grownup}. The next (day|morning), another {treat} was
        (gone|missing). @Conflict "Was it you, {hero}?" asked {Grownup}. ("(I didn't take it|It was not me)!" said
        {hero}.|{sad})
    "I will catch the thief," {he} said. (@Foreshadowing Under the window, {he} found (small|tiny)
        (tracks|footprints) in the dust.|@Foreshadowing On the wall {he} found a (bit|tuft) of (soft|brown) fur.|)
        That night, {he} hid (behind|beside) the {nook} with a (lamp|lantern) and {his} {toy}. Then something
        (rustled|creaked|squeaked). A (small|little|dark) shadow (jumped|hopped|climbed) on the table and took a
        {treat}!
    {hero} (did not shout|kept quiet). {He} (followed|crept after) (the shadow|it), (out of|through) the door and
        (around|past|behind) the {spot}. (It was a|There {he} saw a) {wild.adj} {wild}! It (slipped|went) into a
        hole under the {spot2}. {hero} (knelt|bent) down and (held up {his} light|looked in|peeped into the hole).
        @Twist There were (two|three|four) (tiny|thin) babies, and the mother (broke|tore) the {treat} into bits for
        them. "(You are no thief|You poor things|So that is why)," (whispered|said) {hero}.
    In the morning, {hero} told {Grownup} (everything|the whole story). "(I am sorry that I blamed you|I was wrong
        about you|Forgive me, {hero})," said {Grownup}. ({hug}|) (From then on|After that|Every evening), they
        (put|set) a bowl of (nuts|seeds|crumbs) beside the {spot2}. (In spring, the babies came to the window to say
        thank you.|And the {wild} family (grew|got) (fat|round) and happy.|{hero} gave each of the babies a name.)
        (@MoralValue {hero} learned (to look before you blame|to ask why before you are angry|that a hungry heart
        needs help).|)""",
}

# ---------------------------------------------------------------------------------------------------------------------
# Grammar

IRREGULAR_PLURALS = {
    "mouse": "mice",
    "potato": "potatoes",
    "tomato": "tomatoes",
    "sheep": "sheep",
    "calf": "calves",
    "leaf": "leaves",
    "foot": "feet",
    "fish": "fish",
    "wolf": "wolves",
    "go": "goes",
}
AT = (
    dict.fromkeys("beach farm playground".split(), "at")
    | {"hill": "on"}
    | dict.fromkeys("pond lake river stream".split(), "by")
)


def doubles(verb: str) -> str:
    """The verb with its last letter doubled where its sound asks for it: hop -> hopp, forget -> forgett, open."""
    return verb + verb[-1] if re.fullmatch(r"(be|for)?[^aeiou]+[aeiou][^aeiouwxy]", verb) else verb


def past(verb: str) -> str:
    if verb in IRREGULAR_VERBS:
        return IRREGULAR_VERBS[verb][0]
    if verb.endswith("e"):
        return verb + "d"
    return re.sub(r"(?<![aeiou])y$", "i", doubles(verb)) + "ed"


def participle(verb: str) -> str:
    return IRREGULAR_VERBS[verb][1] if verb in IRREGULAR_VERBS else past(verb)


def ing(verb: str) -> str:
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    return (verb if verb == "be" else re.sub(r"(?<![eo])e$", "", doubles(verb))) + "ing"


def plural(noun: str) -> str:
    """Of a noun; the rule for the third person of a verb is the same."""
    if noun in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[noun]
    return re.sub(r"(?<![aeiou])y$", "ie", noun) + ("es" if re.search(r"(s|x|z|ch|sh)$", noun) else "s")


def readings() -> dict[str, tuple[str, str]]:
    """Word form -> (role, base form), for those that can be only one thing: not "light", not "broken", not "lay"."""
    found: dict[str, set] = {}
    for role, words in (("noun", NOUNS), ("adjective", ADJECTIVES)):
        for word in words:
            found.setdefault(word, set()).add((role, word))
    for verb in set(VERBS) - {"be", "have", "do", "say"}:  # these are in every story and tell nothing
        for form in (verb, plural(verb), past(verb), participle(verb), ing(verb)):
            found.setdefault(form, set()).add(("verb", verb))
    return {form: uses.pop() for form, uses in found.items() if len(uses) == 1}


def first_word(inflect):
    return lambda phrase: " ".join([inflect(phrase.split()[0]), *phrase.split()[1:]])


FORMS = {
    "s": plural,
    "ed": first_word(past),
    "ing": first_word(ing),
    "at": lambda place: f"{AT.get(place, 'in')} the {place}",
}


def tidy(text: str) -> str:
    """Filled-in template -> text: one line per paragraph, capitals after full stops, "an" before a vowel."""
    text = "\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    text = re.sub(r"\b([Aa]) (?=[aeio]|hon|hour|u(?!ni|se))", r"\1n ", text)
    return re.sub(r'(?m)((?:^|[.!?] |\." )"?)([a-z])', lambda m: m[1] + m[2].upper(), text)


# ---------------------------------------------------------------------------------------------------------------------
# Telling


def parse(template: str):
    """ "a (b|c {d})" -> a choice: (linked, alternatives), each alternative a list of strings, "{slots}" and choices."""
    stack = [(False, [[]])]
    for token in re.findall(r"[][()|]|\{[^}]*\}|[^][()|{]+", re.sub(r"(?<=[(|\[])\s+", "", template)):
        if token in "([":
            stack.append((token == "[", [[]]))
        elif token in ")]":
            choice = stack.pop()
            stack[-1][1][-1].append(choice)
        elif token == "|":
            stack[-1][1].append([])
        else:
            stack[-1][1][-1].append(token)
    return stack[0]


ROLES = readings()
PARSED_PHRASES = {name: parse(template) for name, template in PHRASES.items()}
PARSED_PLOTS = {
    name: [parse(part) for part in re.sub(r"\n {4}(?=\S)", "\n\n", template).strip().split("\n\n", 1)]
    for name, template in PLOTS.items()
}


class Telling:
    """What is settled so far in one story: who is in it, what the slots drawn stand for, which case it is."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.case = rng.randrange(420)  # a multiple of 2, 3, 4, 5 and 6: brackets of each size are drawn evenly
        she = dict(he="she", him="her", his="her", himself="herself", kind="girl")
        he = dict(he="he", him="him", his="his", himself="himself", kind="boy")
        heroes, friends, hero, friend = (GIRLS, BOYS, she, he) if rng.random() < 0.5 else (BOYS, GIRLS, he, she)
        self.known = hero | {f"{slot}2": word for slot, word in friend.items()}
        self.known |= dict(hero=rng.choice(heroes), friend=rng.choice(friends))
        if rng.random() < 0.3:
            self.known["kind"], self.known["kind2"] = rng.sample(KINDS["animal"], 2)

    def expand(self, choice) -> str:
        linked, alternatives = choice
        pick = self.case % len(alternatives) if linked else int(self.rng.random() * len(alternatives))
        told = []
        for part in alternatives[pick]:
            if type(part) is tuple:
                told.append(self.expand(part))
            else:
                told.append(self.slot(part[1:-1]) if part[0] == "{" else part)
        return "".join(told)

    def slot(self, name: str) -> str:
        if name in PARSED_PHRASES:
            return self.expand(PARSED_PHRASES[name])
        if name[0].isupper():
            return self.slot(name[0].lower() + name[1:]).capitalize()
        key, _, form = name.partition(".")
        kind = key.rstrip("23")  # {toy2} and {toy3} are toys too
        if form == "adj":
            key, options = name, ADJECTIVES_OF[kind]
        else:
            options = KINDS.get(kind)  # none for {hero}, {he}, ...: these are known from the start
        while key not in self.known:
            word = self.rng.choice(options)
            if word not in self.known.values():  # nothing plays two parts in one story
                self.known[key] = word
        word = self.known[key]
        return FORMS[form](word) if form in FORMS else word


@dataclass(frozen=True)
class Story:
    text: str  # paragraphs separated by "\n"
    words: tuple[str, str, str]  # a noun, a verb and an adjective that occur in the text (the verb maybe inflected)
    features: tuple[str, ...]  # those of FEATURES that hold
    summary: str  # one line
    sentence: str  # a random sentence of the text, verbatim

    def header(self) -> str:
        features = f"Features: {', '.join(self.features)}\n" if self.features else ""
        return f"{features}Words: {', '.join(self.words)}\nSummary: {self.summary}\nRandom sentence: {self.sentence}\n"


def write(plot: str, rng: random.Random) -> Story:
    telling = Telling(rng)
    summary, story = PARSED_PLOTS[plot]
    text = telling.expand(story)
    marked = set(re.findall(r"@(\w+)", text))
    text = tidy(re.sub(r"@\w+\s*", "", text))
    if '"' in text:
        marked.add("Dialogue")
    return Story(
        text,
        three_words(text, rng),
        tuple(f for f in FEATURES if f in marked),
        tidy(telling.expand(summary)),
        rng.choice(sentences(text)),
    )


def sentences(text: str) -> list[str]:
    """The text cut after each sentence; what would cut through somebody's speech is left out."""
    pieces = re.split(r'(?<=[.!?]) |(?<=[.!?]") (?=[A-Z"])|\n', text)
    return [piece for piece in pieces if piece.count('"') % 2 == 0]


def three_words(text: str, rng: random.Random) -> tuple[str, ...]:
    """A noun, a verb and an adjective of the text; fewer where it has none of a kind, which no built-in story lacks."""
    found = {"noun": set(), "verb": set(), "adjective": set()}
    for word in re.findall(r"(?<!')\b[a-z]+\b(?!')", text):  # "won't" is not "won"
        if word in ROLES:
            role, base = ROLES[word]
            found[role].add(base)
    return tuple(rng.choice(sorted(found[role])) for role in found if found[role])


def as_pattern(part) -> str:
    """A regular expression for all that a part of a parsed template can become; a slot may become any words."""
    if type(part) is tuple:
        return "(?:" + "|".join("".join(map(as_pattern, alternative)) for alternative in part[1]) + ")"
    if part[0] == "{":
        return "[^.]+?"
    return re.sub(r"\ba ", "an? ", re.escape(re.sub(r"\s+", " ", part)).replace("\\ ", " "))


def sentences_marked(mark: str, choice) -> Iterator[str]:
    """A pattern for each sentence of a parsed template that stands behind this mark."""
    for alternative in choice[1]:
        for i, part in enumerate(alternative):
            if type(part) is tuple:
                yield from sentences_marked(mark, part)
            elif mark in part:
                rest = [part.partition(mark)[2].lstrip(), *alternative[i + 1 :]]
                pattern = "".join(as_pattern(part) for part in rest if part).partition(r"\.")[0]
                yield pattern.removeprefix("[^.]+?")  # with anything in front, the search takes 25 times as long


BAD_ENDINGS = re.compile(
    "|".join(pattern for _, story in PARSED_PLOTS.values() for pattern in sentences_marked("@BadEnding", story)), re.I
)


def ends_badly(text: str) -> bool:
    """Whether one of the sentences stands in it by which a built-in plot ends badly: it knows no other bad endings."""
    return BAD_ENDINGS.search(text) is not None


def tell(seed: int, index: int) -> Story:
    """Story `index` of the corpus `seed`: a function of these two alone, the same on every machine."""
    rng = random.Random(f"{seed}/{index}")
    return write(rng.choice(list(PLOTS)), rng)


def stories(n: int, seed: int = 0) -> Iterator[Story]:
    return (tell(seed, index) for index in range(n))


def main() -> None:
    parser = argparse.ArgumentParser(description="Tell children's stories, separated by blank lines.")
    parser.add_argument("--n", type=int, default=1, help="how many stories")
    parser.add_argument("--seed", type=int, default=0, help="which corpus: the same seed always tells the same stories")
    parser.add_argument("--headers", action="store_true", help="put each story's features, words, summary above it")
    args = parser.parse_args()
    for story in stories(args.n, args.seed):
        print((story.header() + "Story:\n" if args.headers else "") + story.text + "\n")


if __name__ == "__main__":
    main()
