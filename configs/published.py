# As TinyStories-33M was trained, as far as that is known; give it after configs/ts_33m.py. The
# stories are the first version, an author speaks of about 20 epochs (discussion 8 of the card),
# and nothing is said of clipping. For the ids of the checkpoints, all of GPT-2's:
# $ python prepare.py tinystories --raw --vocab_size 50257 --name tinystories-published
# $ python train.py configs/ts_33m.py configs/published.py
data = "tinystories-published"
epochs = 20.0
grad_clip = 0.0
