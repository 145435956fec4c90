#!/usr/bin/env python3
"""What tools/gpu_check makes of what it measures, without a GPU: its figures and tables."""

import json
import re
import shutil
import struct
import subprocess
import sys
import unittest

from gpu_bundle import (DEVICE, LISTINGS, MODELS, PIPEC, REAL, STEPS, TABLE, TOOLS, BundleTest,
                        records, says, write_program)
from gpu import nccl_library, plans, profile, training


class GpuMeasuresTest(BundleTest):
    def test_mfu(self):
        """In percent, of ours and of half of the attention: tools/gpu_check on an H200, by llm.c."""
        for name, ours, theirs in (("gpt2-124M", 49.0, 45.8), ("gpt2-1.5B", 53.4, 51.0),
                                   ("llama-1B", 58.8, 57.1), ("llama-3B", 57.0, 55.4)):
            whole, half = (plans.operations_per_token(REAL[name], n) for n in (12, 6))
            self.assertAlmostEqual(ours * half / whole, theirs, delta=0.06)
        anchors = {name: model["llmq_h100"] for name, model in REAL.items() if "llmq_h100" in model}
        self.assertEqual(len(anchors), 3)
        for name, anchor in anchors.items():
            found = plans.utilizations(REAL[name], anchor["tokens_per_second"], 989e12)
            self.assertAlmostEqual(found["mfu_6N_6LCT"], anchor["mfu_6N_6LCT"], delta=0.0006)

    def test_races_fit(self):
        """By the real plans: the smallest size an H100, and the largest an H200, with room."""
        race = TABLE["race"]
        for name in ("gpt2-124M", "gpt2-1.5B", "llama-1B", *(n for n in REAL if "qwen" in n)):
            model = REAL[name]
            self.assertEqual(race["sequences"] * model["tokens"], 524288)
            sizes = model["batch"] if isinstance(model["batch"], list) else [model["batch"]]
            config, plan = self.root / "config.json", self.root / "race.plan"
            config.write_text(json.dumps(plans.config_of(model)))
            for batch, most in ((sizes[-1], 76), (sizes[0], 137)):
                self.assertEqual(race["measured_sequences"] % batch, 0)
                subprocess.run([PIPEC, "compile", "--scheme", "1f1b", "--devices", "1", "-q",
                                "--microbatches", str(race["measured_sequences"] // batch),
                                "--model", config, "--micro-batch-size", str(batch),
                                "--seq-length", str(model["tokens"]), "--dtype", "bf16",
                                "--backend", "cuda", "-o", plan], check=True)
                shown = subprocess.run([PIPEC, "simulate", plan, "--format", "json"], check=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                peak = json.loads(shown.stdout)["devices"][0]["peak_bytes"]
                self.assertLess(peak, most << 30, name)

    def race(self, name, memory, peaks, keep=""):
        """Rows of a race where a step takes 0.5 s, and 0.25 s for each micro-batch of 4."""
        bundle = self.bundle(name)
        models = {**MODELS, "models": {**MODELS["models"], "qwen2.5-1.5B": {
            **MODELS["models"]["qwen2.5-1.5B"], "keep": keep}}}
        (bundle.here / "gpu/models.json").write_text(json.dumps(models))
        write_program(bundle.here / "gpu_kernels",
                      says(re.sub("memory_bytes: .*", f"memory_bytes: {memory << 30}", DEVICE)))
        cases = "".join(f"*{plan}*) echo {peak} ;; " for plan, peak in peaks.items())
        write_program(bundle.here / "pipec", f"""
for word; do [ "$last" = -o ] && : >"$word"; last=$word; done
[ "$1" = compile ] && echo compiled && exit
gib=$(case $2 in {cases} esac)
echo '{{"devices": [{{"peak_bytes": '$((gib << 30))'}}]}}'""")
        row = '{"step": 1, "loss": 5.5, "step_seconds": %s, "peak_bytes": [7]}'
        write_program(bundle.here / "piperun", f"""
for word; do [ "$last" = --log ] && log=$word; last=$word; done
name=${{1##*/}} && name=${{name%%_keep*}} && name=${{name%.plan}} && name=${{name##*_}}
seconds=$(awk "BEGIN {{print 0.5 + 0.25 * ${{name#*x}} * ${{name%x*}} / 4}}")
for _ in 1 2; do printf '{row}\\n' $seconds; done >"$log"; echo done""")
        status, output, rows = bundle.call("race/qwen2.5-1.5B")
        self.assertEqual(status, 0, output)
        return [row for row in rows if row["check"] == "race"], bundle.packed()

    def test_race(self):
        rows, _ = self.race("h200", 140, {"_4x": 130, "_2x": 70})
        self.assertEqual(len(rows), 1)
        row = rows[0]
        self.assertEqual((row["of_sequences"], row["microbatches"], row["of_microbatches"]),
                         (4, 4, 8))
        self.assertEqual(row["ms"], 1500)
        self.assertEqual(row["tokens_per_second"], round(4 * 4 * 16 / 1.5))
        self.assertEqual(row["llmq_h100_tokens_per_second"], 58900)

        rows, _ = self.race("h100", 79, {"_4x": 130, "_2x": 70})
        row = rows[0]
        self.assertEqual((row["of_sequences"], row["microbatches"], row["of_microbatches"]),
                         (2, 8, 16))
        self.assertEqual(row["ms"], 1500)

        rows, logs = self.race("keeps", 140, {"_4x2.plan": 90, "_4x2_keep": 120},
                               keep="norm,swiglu")
        self.assertEqual([row["name"] for row in rows],
                         ["qwen2.5-1.5B, keeps norm,swiglu", "qwen2.5-1.5B"])
        self.assertEqual([row["ms"] for row in rows], [1500, 1500])
        self.assertIn(" --keep norm,swiglu ", logs["logs/plan_qwen2.5-1.5B_4x4_keep_norm,swiglu.txt"])
        rows, _ = self.race("keeps_too_much", 140, {"_4x2.plan": 90, "_4x2_keep": 139},
                            keep="norm,swiglu")
        self.assertEqual([row["result"] for row in rows],
                         ["not possible: too large for this GPU", "ok"])

    def test_only_what_there_is_time_for(self):
        class Clock:
            now, said = 100.0, []

            def left(self):
                return self.now

            def note(self, *row):
                self.said.append(row)

        clock, run = Clock(), []
        for what, seconds in training.in_time(clock, "race", [("a", 40), ("b", 30), ("c", 1)]):
            run.append(what)
            clock.now -= seconds
        self.assertEqual((run, clock.said),
                         (["a", "b"], [("race", "c", "not started: no time left")]))

    def test_table_of_products(self):
        bundle = self.bundle()
        for _ in range(2):  # the second call's rows take the place of the first one's
            status, output, _ = bundle.call("tune/gpt2-124M", "tune/qwen2.5-1.5B")
            self.assertEqual(status, 0, output)
        lines = (bundle.folder / "products_h200.tsv").read_text().splitlines()
        self.assertEqual(lines[0], "# NVIDIA H200, driver unknown, CUDA 13.0; ceiling: a product of "
                         "8192 x 8192 x 8192, 788.1 TFLOP/s")
        self.assertEqual([line.split("\t")[0] for line in lines[2:]],
                         ["gpt2-124M"] * 2 + ["qwen2.5-1.5B"] * 2)
        self.assertEqual(lines[2].split("\t")[1:], [
            "nn 64x128x32 32,128,128 bf16 set bias - gelu", "bf16",
            "algorithm 66, tile 20, stages 0, split-K 1, reduction 0, workspace 0", "2.0", "2.5",
            "0.3", "0.0"])  # 2 * 64 * 128 * 32 operations in 2 us
        self.assertEqual(lines[3].split("\t")[2], "bf16-sum")

    def test_price(self):
        bundle = self.bundle()
        status, output, rows = bundle.call("profile/gpt2-124M", "price/gpt2-124M")
        self.assertEqual(status, 0, output)
        price = {row["name"].split(", ", 1)[1]: row for row in rows if row["check"] == "price"}
        flash = price["attention backward: flash, one order"]
        # Two layers, beside cuDNN's any order: 2 * (140 - 90) us of a step of 72 ms.
        self.assertEqual((flash["ms"], flash["order_costs_ms"], flash["order_costs_percent"]),
                         (0.28, 0.1, 0.14))
        self.assertNotIn("order_costs_ms", price["attention backward: flash, any order"])
        self.assertEqual(price["embedding backward: index_add, one order"]["order_costs_ms"], 0.05)
        self.assertEqual(price["attention backward: cuDNN, one order"]["result"],
                         "not possible: No available kernel. Aborting execution.")
        self.assertEqual(price["attention backward: ours, one order"]["order_costs_ms"], -0.18)
        self.assertEqual(price["products: sums in any order"]["order_costs_ms"], 0)
        self.assertIn(" --cuda-experiments reduction=any",
                      bundle.packed()["logs/price_gpt2-124M_any_order.txt"])

    def test_two_ranks_on_one_gpu(self):
        bundle = self.bundle()
        status, output, rows = bundle.call("ranks")
        self.assertEqual((status, rows[-1]["result"], rows[-1]["nccl"]), (0, "ok", "2.32.3"), output)
        log = bundle.packed()["logs/ranks_nccl.txt"]
        self.assertRegex(log, r"^\$ env .*NCCL_MULTI_RANK_GPU_ENABLE=1 .* --transport nccl ")
        bundle.nccl("2.28.9")
        status, output, rows = bundle.call("ranks")
        self.assertEqual(status, 0, output)
        self.assertRegex(rows[-1]["result"], "^not possible: NCCL 2.28.9, before 2.30, refuses")
        (bundle.here / "lib/libnccl.so.2").unlink()
        status, output, rows = bundle.call("ranks")
        self.assertEqual((status, rows[-1]["result"]), (0, "not possible: no NCCL is found"))
        bundle.nccl("2.30.1")
        program = (bundle.here / "piperun").read_text()
        write_program(bundle.here / "piperun", program.replace(
            "for _ in", 'case "$*" in *nccl*) steps=4 ;; esac\nfor _ in'))
        status, output, rows = bundle.call("ranks")
        self.assertEqual(status, 1, output)
        self.assertRegex(rows[-1]["result"], r"^WRONG losses \[(5.5, ){4}5.5\] without NCCL, "
                         r"\[(5.5, ){3}5.5\] with it")

    def test_an_earlier_build(self):
        bundle = self.bundle()
        (bundle.here / "old").mkdir()
        for program in ("pipec", "piperun"):
            shutil.copy(bundle.here / program, bundle.here / "old")
        old = bundle.here / "old/piperun"
        old.write_text(old.read_text().replace("0.072", "0.09").replace(
            '$(dirname "$0")', '$(dirname "$0")/..'))
        status, output, rows = bundle.call("train/gpt2-124M", "profile/gpt2-124M")
        self.assertEqual(status, 0, output)
        self.assertEqual({row["name"]: row["ms"] for row in rows if row["check"] == "train"},
                         {"gpt2-124M": 72, "gpt2-124M, old": 90, "gpt2-124M, poll=50": 72})
        self.assertIn(" --cuda-experiments poll=50",
                      bundle.packed()["logs/train_gpt2-124M,_poll=50.txt"])
        self.assertEqual([row["name"] for row in rows if row["name"].endswith(" step")],
                         ["gpt2-124M, the step", "gpt2-124M, old, the step"])

    def test_ncu(self):
        bundle = self.bundle()
        status, output, rows = bundle.call("ncu/64")
        self.assertEqual(status, 0, output)
        self.assertEqual([(row["name"], row["Duration, us"]) for row in rows[2:]],
                         [("KeyGradients, heads of 64", 303.2),
                          ("QueryGradients, heads of 64", 1202.1)])
        self.assertEqual(rows[2]["Registers Per Thread, register/thread"], 168)
        write_program(bundle.tools / "ncu", "echo '==ERROR== ERR_NVGPUCTRPERM - denied'; exit 1")
        status, output, rows = bundle.call("ncu/64")
        self.assertEqual((status, rows[-1]["result"]), (
            0, "not possible: this machine lets nobody read its counters"))

    def test_nccl_for_a_bundle(self):
        def fat(*entries):
            body = b"".join(struct.pack("<HHIQ", kind, 1, 64, len(code)) + bytes(12)
                            + struct.pack("<I", sm) + bytes(32) + code
                            for kind, sm, code in entries)
            return struct.pack("<IHHQ", nccl_library.MAGIC, 1, 16, len(body)) + body

        names = b"\0.nv_fatbin\0__nv_relfatbin\0.text\0"
        parts = [b"", fat((2, 80, b"ampere.."), (2, 90, b"hopper.."), (1, 90, b"ptx....."))
                 + bytes(8) + fat((2, 90, b"hopper2.")), fat((2, 90, b"linking.")), b"code", names]
        offsets = [64 + sum(map(len, parts[:i])) for i in range(len(parts))]
        rows = [struct.pack("<IIQQQQ", 0 if not name else names.index(name), 1, 0, 0, at, len(part))
                + bytes(24) for name, at, part in
                zip((b"", b".nv_fatbin", b"__nv_relfatbin", b".text", b""), offsets, parts)]
        table = 64 + sum(map(len, parts))
        header = (b"\x7fELF" + bytes(0x24) + struct.pack("<Q", table) + bytes(10)
                  + struct.pack("<HHH", 64, 5, 4))
        library = bytearray(header + b"".join(parts + rows))
        whole = bytes(library)
        self.assertEqual(nccl_library.clear_others(library), 2)
        cleared = whole
        for code in (b"ampere..", b"ptx.....", b"linking."):
            self.assertIn(code, whole)
            cleared = cleared.replace(code, bytes(8))
        self.assertEqual(bytes(library), cleared)

    def test_ratio_to_pytorch(self):
        bundle = self.bundle()
        self.assertEqual(bundle.call("train/gpt2-124M")[0], 0)
        status, output, rows = bundle.call("torch/gpt2-124M/compile/cudnn")
        self.assertEqual((status, rows[-1]["ours_ms"], rows[-1]["ours_of_theirs"]), (0, 72.0, 1.0))

    def test_profile(self):
        bundle = self.bundle()
        status, output, rows = bundle.call("profile/gpt2-124M")
        self.assertEqual(status, 0, output)
        ms = {row["name"]: row for row in rows if row["check"] == "profile"}
        self.assertEqual(ms["gpt2-124M, products"]["ms"], 0.001)
        self.assertEqual(ms["gpt2-124M, norms, elementwise, bias"]["launches"], 3)
        self.assertEqual(ms["gpt2-124M, gaps between launches"]["ms"], 0.0005)
        self.assertEqual(ms["gpt2-124M, the step"]["ms"], 0.0055)
        self.assertEqual(ms["gpt2-124M, the step"]["side_by_side_ms"], 0.0001)  # the copy
        self.assertEqual(ms["gpt2-124M, products"]["predicted_ms"], 42)
        self.assertIn("gelu GeluForwardEach", bundle.packed()["logs/profile_gpt2-124M_kernels.txt"])
        for text, why in ((records(STEPS - 1), "AdamW runs 5 times in 6 steps"),
                          ("lost\t7\n" + records(STEPS), "7 records lost"),
                          ("", "no records of CUPTI")):
            (bundle.here / "records.tsv").write_text(text)
            status, output, rows = bundle.call("profile/gpt2-124M")
            self.assertEqual((status, rows[-1]["result"]), (1, f"WRONG {why}"))

    def test_every_kernel_has_a_group(self):
        if LISTINGS[0].name == "no_nvcc":
            print("SKIPPED the groups of the kernels for a GPU: there is no nvcc")
            return
        kernels = set()
        for listing in LISTINGS:
            if listing.suffix == ".ptx":
                kernels |= set(re.findall(r"\.entry (\w+)", listing.read_text()))
        self.assertGreater(len(kernels), 100)
        self.assertEqual([k for k in kernels if profile.group_of(k) is None], [])
        self.assertEqual([k for k in kernels if not re.fullmatch(r"\w+ [A-Z]\w+",
                                                                 profile.short_name(k))], [])
        self.assertIsNone(profile.group_of("_ZN2at6native13reduce_kernelE"))

    def test_predictions(self):
        """Of an H200: an H100's, with what memory bounds by the ratio of the two copies' speeds."""
        predictions = json.loads((TOOLS / "gpu/predictions.json").read_text())
        bound = (profile.ELEMENTS, profile.CROSS_ENTROPY, profile.OPTIMIZER)
        for model, groups in predictions["H100"].items():
            self.assertIn(model, REAL)
            self.assertEqual(tuple(groups), profile.GROUPS)
            for group, ms in groups.items():
                scale = 2.8 / 4.3 if group in bound else 1
                self.assertAlmostEqual(predictions["H200"][model][group], ms * scale, delta=0.051)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
