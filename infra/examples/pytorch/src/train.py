"""A PyTorch loop that can be moved. Of several processes (torchrun) only rank 0 talks to lowtide, and all save together."""

import os

import lowtide
import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", "1000"))
EVERY = int(os.environ.get("EVERY", "100"))  # steps between two checkpoints


def save(model, optimizer, step):
    path = os.path.join(lowtide.directory(), f"step-{step}")
    os.makedirs(path, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "rng": torch.get_rng_state()}
    torch.save(state, os.path.join(path, "state.pt"))
    lowtide.ready(path, step)


def main():
    torch.manual_seed(int(os.environ.get("SEED", "7")))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    if path := lowtide.restored():
        state = torch.load(os.path.join(path, "state.pt"), map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        step = state["step"]
        print(f"going on after step {step}", flush=True)

    lowtide.start()
    while step < STEPS:
        x = torch.randn(64, 32).to(device)  # drawn on the CPU, whose state is in the checkpoint
        loss = ((model(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        lowtide.progress(step, STEPS)
        leave = lowtide.asked()
        if leave or step % EVERY == 0 or step == STEPS:
            save(model, optimizer, step)
            print(f"step {step}: loss {loss.item():.5f}, saved", flush=True)
        if leave:
            return
    lowtide.result(f"loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
