"""The examples train, and so do the lines of Python in the README."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# What the lines of the README leave to the reader.
AROUND = """
import torch, torch.distributed as dist
from torch import nn
if not dist.is_initialized():
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), *[nn.Sequential(nn.ReLU(), nn.Linear(32, 32))
                                          for _ in range(5)], nn.Linear(32, 8))
loss_sum = nn.MSELoss(reduction="sum")
x = list(torch.randn(8, 4, 8))
loader, tokens = [(x, x)] * 8, 8 * 4 * 8
"""
EACH_STEP = """    loss = pipe.total(losses)
    if me.rank == 0:
        print(f"loss {loss:.4f}", flush=True)
"""


def run(script: Path, *arguments: str) -> list[float]:
    """The losses that two processes print."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
             "--master-port", "0", "--standalone", str(script), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    if done.returncode:
        raise AssertionError(f"{script.name}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    if "recvVector" in done.stderr or "Traceback" in done.stderr:
        raise AssertionError(f"{script.name}: says\n{done.stderr}")
    return [float(loss) for loss in re.findall(r"loss ([0-9.]+)", done.stdout)]


class Examples(unittest.TestCase):
    def check(self, losses: list[float], steps: int):
        self.assertEqual(len(losses), steps)
        self.assertLess(losses[-1], losses[0])

    def test_own_schedule(self):
        self.check(run(ROOT / "tools/python/examples/own_schedule.py"), 20)

    def test_vision(self):
        self.check(run(ROOT / "tools/python/examples/vision.py", "--steps", "8"), 8)

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "no transformers")
    def test_llama(self):
        self.check(run(ROOT / "tools/python/examples/llama.py", "--steps", "3"), 3)

    def test_readme(self):
        text = (ROOT / "tools/python/README.md").read_text()
        blocks = [block for block in re.findall(r"```python\n(.*?)```", text, re.S)
                  if "in loader" in block]
        self.assertEqual(len(blocks), 1)
        lines = blocks[0].replace('dist.init_process_group("gloo")', "pass")
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "train.py")
            script.write_text(AROUND + re.sub(r"(    losses = .*\n)", r"\1" + EACH_STEP, lines))
            self.check(run(script), 8)


if __name__ == "__main__":
    unittest.main()
