"""Divides one model among several processes of one client; see docs/how-to/several-devices.md.

`model` is rank 0's model and `controller` its side of the group; `worker` is the program of every other rank, `model_shard` what
all of them compute; `dtensor` and `plans` say how parameters are divided. `group` connects the processes.
"""
