# Muon, aligned windows and a falling learning rate; give it after another config.
# $ python train.py configs/ts_8m.py configs/fast.py
# LOG.md has the measurements.
optimizer = "muon"
learning_rate = 8e-3
beta2 = 0.99
align_stories = True
warmup_steps = 10
warmdown = 0.6
