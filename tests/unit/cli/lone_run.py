"""A run file for training in one process, without its data and optimizer. Write a data location for "PLACE"."""

from __future__ import annotations

RUN = """
run_id = "alone"
[config]
warmup_time = 20
cooldown_time = 1
max_round_train_time = 30
round_witness_time = 1
epoch_time = 60
total_steps = 12
init_min_clients = 1
min_clients = 1
witness_nodes = 0
global_batch_size_start = 8
global_batch_size_end = 8
global_batch_size_warmup_tokens = 0
verification_percent = 0
waiting_for_members_extra_time = 1
[model.LLM]
architecture = "HfAuto"
data_type = "Pretraining"
max_seq_len = 16
cold_start_warmup_steps = 0
checkpoint = { Hub = { repo_id = "model" } }
data_location = "PLACE"
lr_schedule = { Constant = { base_lr = 2e-2, warmup_init_lr = 0.0, warmup_steps = 2 } }
"""
ADAMW = "optimizer = { AdamW = { betas = [0.9, 0.95], weight_decay = 0.1, eps = 1e-8, clip_grad_norm = 1.0 } }\n"
DISTRO = "optimizer = { Distro = { compression_topk = 64, compression_chunk = 16, quantize_1bit = true } }\n"
