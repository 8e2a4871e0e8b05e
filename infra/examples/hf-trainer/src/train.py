"""Hugging Face's Trainer, made movable by one callback. Replace model and data by yours."""

import os

import lowtide
import torch
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

STEPS = int(os.environ.get("STEPS", "1000"))


class Movable(TrainerCallback):
    """Saves and stops when lowtide asks, and tells it of each checkpoint that is complete."""

    def on_train_begin(self, args, state, control, **kwargs):
        lowtide.start()

    def on_step_end(self, args, state, control, **kwargs):
        lowtide.progress(state.global_step, state.max_steps)
        if lowtide.asked():
            control.should_save = True
            control.should_training_stop = True

    def on_save(self, args, state, control, **kwargs):
        lowtide.ready(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"), state.global_step)


class Random(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, i):
        ids = torch.randint(0, 1000, (64,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids}


def main():
    config = AutoConfig.for_model("gpt2", n_layer=2, n_head=2, n_embd=64, vocab_size=1000)
    args = TrainingArguments(
        output_dir=lowtide.directory(), max_steps=STEPS, save_steps=int(os.environ.get("EVERY", "100")),
        save_total_limit=3,  # the newest must stay while it is uploaded
        per_device_train_batch_size=8, report_to=[],
    )
    trainer = Trainer(model=AutoModelForCausalLM.from_config(config), args=args, train_dataset=Random(), callbacks=[Movable()])
    trainer.train(resume_from_checkpoint=lowtide.restored())
    if trainer.state.global_step >= STEPS:
        lowtide.result(f"{trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
