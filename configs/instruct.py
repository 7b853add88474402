"""The 8M model (256 wide, 8 layers, 16 heads) on TinyStories-Instruct; loss_on=story learns the stories alone.

$ python prepare.py instruct && python train.py configs/instruct.py
"""

data = "instruct"
n_embd = 256
n_layer = 8
n_head = 16
