# SPDX-License-Identifier: Apache-2.0
"""One rank of the DeepSpeed side of cpu_side_by_side.py, started by torchrun with the task's JSON file: trains a GPT-2 on
random tokens, and on rank 0 writes a line with loss and step_ms for each step."""
import json
import os
import sys
import time

import deepspeed
import torch
import transformers

with open(sys.argv[1]) as file:
    task = json.load(file)
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
rank = torch.distributed.get_rank()
if task["model_folder"]:
    model = transformers.GPT2LMHeadModel.from_pretrained(task["model_folder"])
else:
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**task["model"]))
model.train()
engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=task["config"])
rows = task["config"]["train_micro_batch_size_per_gpu"]
torch.manual_seed(rank)
with open(task["output"] if rank == 0 else os.devnull, "w") as metrics:
    for step in range(task["steps"]):
        began = time.perf_counter()
        tokens = torch.randint(0, model.config.vocab_size, (rows, task["sequence_length"]))
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        line = {"loss": loss.item(), "step_ms": (time.perf_counter() - began) * 1e3}
        print(json.dumps(line), file=metrics, flush=True)
