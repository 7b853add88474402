"""What train.py's loop is made of. In: a TrainConfig and data/<name>/. Out: the files of out/<run>/.
Read config.py first, then data_order.py."""
