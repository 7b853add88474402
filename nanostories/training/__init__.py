"""The parts of train.py's loop. In: a TrainConfig and data/<name>/. Out: the files of out/<run>/.
Read config.py first, then data_order.py."""
