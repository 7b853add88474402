"""What train.py's loop is made of: settings, data order, optimizers, device and dtype, processes, the run's files.
In: a TrainConfig and data/<name>/. Out: out/<run>/{ckpt.pt, best.pt, config.json, log.csv, loss.png}.
Read config.py first, then data_order.py.
"""
