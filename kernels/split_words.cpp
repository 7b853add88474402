// Tokens -> word ids (runs of letters a to z and digits, lowercased). novelty/corpus_words.py compiles and calls this.
//
// Words are numbered in the order in which they first occur. They are compared letter by letter: the hash only says
// where to look.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

constexpr uint32_t FREE = UINT32_MAX;
struct Slot {
    uint32_t hash, id;
};

struct Reader {
    const uint8_t *bytes;    // of all tokens, concatenated
    const int64_t *offsets;  // token t is bytes[offsets[t]] to bytes[offsets[t + 1]]
    long end_of_text;
    std::vector<Slot> slots = std::vector<Slot>(1 << 16, Slot{0, FREE});
    std::string letters;                   // of all words, concatenated
    std::vector<int64_t> starts = {0};     // where in `letters` each begins
    std::vector<int64_t> in_mid_sentence;  // two for each word: how often in lower case, how often capitalized
    std::string story, lowered;            // the current story, after two spaces; `lowered` has 0 between words
    uint8_t lower[256] = {};

    Reader(const uint8_t *bytes, const int64_t *offsets, long end_of_text)
        : bytes(bytes), offsets(offsets), end_of_text(end_of_text) {
        for (int c = '0'; c <= '9'; c++) lower[c] = c;
        for (int c = 'a'; c <= 'z'; c++) lower[c] = lower[c - 'a' + 'A'] = c;
    }

    size_t free_slot(size_t hash) const {
        while (slots[hash & (slots.size() - 1)].id != FREE) hash++;
        return hash & (slots.size() - 1);
    }

    uint32_t add(const char *word, long length, uint32_t hash) {
        if (starts.size() > slots.size() / 2) {
            std::vector<Slot> old(2 * slots.size(), Slot{0, FREE});
            old.swap(slots);
            for (Slot slot : old)
                if (slot.id != FREE) slots[free_slot(slot.hash)] = slot;
        }
        const uint32_t id = starts.size() - 1;
        slots[free_slot(hash)] = {hash, id};
        letters.append(word, length);
        starts.push_back(letters.size());
        in_mid_sentence.resize(2 * starts.size());
        return id;
    }

    uint32_t id_of(const char *word, long length, uint32_t hash) {
        for (size_t i = hash;; i++) {
            const Slot slot = slots[i & (slots.size() - 1)];
            if (slot.id == FREE) return add(word, length, hash);
            if (slot.hash == hash && starts[slot.id + 1] - starts[slot.id] == length &&
                memcmp(&letters[starts[slot.id]], word, length) == 0)
                return slot.id;
        }
    }

    // The only two non-ASCII characters whose lower case contains a letter from a to z: the Kelvin sign, I with a dot.
    void spell_out(const char *character, const char *spelling) {
        for (size_t i = 0; (i = story.find(character, i)) != std::string::npos;) story.replace(i, strlen(character), spelling);
    }

    long read_story(uint32_t *ids) {
        spell_out("\xE2\x84\xAA", "K");
        spell_out("\xC4\xB0", "I\xCC\x87");
        const size_t size = story.size();
        lowered.resize(size + 1);
        for (size_t i = 0; i < size; i++) lowered[i] = lower[(uint8_t)story[i]];
        lowered[size] = 0;
        long n = 0;
        for (size_t i = 2; i < size; i++) {
            if (!lowered[i]) continue;
            const size_t start = i;
            uint32_t hash = 2166136261u;
            for (; lowered[i]; i++) hash = (hash ^ (uint8_t)lowered[i]) * 16777619u;
            const uint32_t id = id_of(&lowered[start], i - start, hash ^ hash >> 15);
            const char first = story[start], before = story[start - 2];
            if (first > '9' && story[start - 1] == ' ' && ((before >= 'a' && before <= 'z') || before == ','))
                in_mid_sentence[2 * id + (first <= 'Z')]++;
            ids[n++] = id;
        }
        return n;
    }
};

extern "C" {
Reader *new_reader(const uint8_t *bytes, const int64_t *offsets, long end_of_text) {
    return new Reader(bytes, offsets, end_of_text);
}
void delete_reader(Reader *reader) { delete reader; }

// tokens (n), complete stories -> ids, and in `ends` how many there are up to the end of each story. Returns their number.
long read_stories(Reader *reader, const uint16_t *tokens, long n, uint32_t *ids, int64_t *ends) {
    long n_ids = 0, n_stories = 0;
    reader->story = "  ";
    for (long i = 0; i < n; i++)
        if (tokens[i] == reader->end_of_text) {
            n_ids += reader->read_story(ids + n_ids);
            ends[n_stories++] = n_ids;
            reader->story = "  ";
        } else {
            const int64_t start = reader->offsets[tokens[i]];
            reader->story.append((const char *)reader->bytes + start, reader->offsets[tokens[i] + 1] - start);
        }
    return n_ids;
}

long vocabulary_size(const Reader *reader) { return reader->starts.size() - 1; }
long vocabulary_bytes(const Reader *reader) { return reader->letters.size() + vocabulary_size(reader); }

// letters (vocabulary_bytes): the words, a newline after each; in_mid_sentence (vocabulary_size, 2)
void vocabulary(const Reader *reader, char *letters, int64_t *in_mid_sentence) {
    for (long id = 0; id < vocabulary_size(reader); id++) {
        const int64_t start = reader->starts[id], length = reader->starts[id + 1] - start;
        memcpy(letters, &reader->letters[start], length);
        letters[length] = '\n';
        letters += length + 1;
    }
    if (vocabulary_size(reader))
        memcpy(in_mid_sentence, reader->in_mid_sentence.data(), 2 * vocabulary_size(reader) * sizeof(int64_t));
}
}
