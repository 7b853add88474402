# The 8M model (256 wide, 8 layers, 16 heads) on TinyStories-Instruct; add --loss_on=story to learn
# only the stories.
# $ python prepare.py instruct
# $ python train.py configs/instruct.py
data = "instruct"
