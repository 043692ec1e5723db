#!/usr/bin/env python3
"""What a new user tries in the first hour, each literally: it works, or it stops at once with what would. docs/measured/first-hour.md has the table.

Usage: first_hour_test.py [unittest's arguments]
"""

import datetime
import subprocess
import sys
import tempfile
import unittest
import warnings

import tessera
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
from zoo import tf

IDS = torch.randint(3, 99, (8, 12), generator=torch.Generator().manual_seed(1))
LLAMA = tf.LlamaConfig(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)


class FirstHourTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.folder = holder.name
        cls.tiny = f"{cls.folder}/tiny"
        torch.manual_seed(0)
        tf.LlamaForCausalLM(LLAMA).save_pretrained(cls.tiny)

    def model(self, mesh="", **arguments):
        model = tf.AutoModelForCausalLM.from_pretrained(self.tiny)
        return tessera.parallelize(model, mesh, **arguments) if mesh else model

    def loss(self, model, ids=IDS):
        return model(input_ids=ids, labels=ids).loss

    def refused(self, text, body, ranks=2):
        with self.assertRaisesRegex((NotImplementedError, ValueError, RuntimeError, TypeError, ImportError), text):
            tessera.run_ranks(body, ranks)

    def close(self, seen, wanted):
        torch.testing.assert_close(seen, wanted, rtol=1e-5, atol=0)

    # --- versions

    def test_04_another_torch(self):
        code = "import torch; torch.__version__ = '2.99.0'\nimport tessera"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
        self.assertIn("ImportError: tessera was built for torch", done.stderr)
        self.assertIn("or build tessera again with this one", done.stderr)

    # --- models and meshes

    def test_06_a_model_that_no_rank_should_hold_whole(self):
        self.refused(r"\[deferred\] LlamaForCausalLM.from_pretrained reads values.*tessera.load\(folder, model\)", lambda: tessera.deferred(self.model))

        def body():
            model = tessera.deferred(lambda: tf.AutoModelForCausalLM.from_config(tf.AutoConfig.from_pretrained(self.tiny)))
            tessera.parallelize(model, "fsdp=4")
            tessera.load(self.tiny, model)
            return self.loss(model).item()

        self.close(tessera.run_ranks(body, 4), self.loss(self.model()).item())

    def test_07_cuda(self):
        self.refused("'cuda': ranks compute on CPUs so far; accepted: 'cpu'", lambda: tessera.init_device_mesh("cuda", (2,)))
        self.refused("cannot go to meta; accepted: another dtype; another device before parallelize", lambda: self.model("dp=2").to("meta"))

    def test_08_fsdp_holds_a_part(self):
        one = sum(p.numel() for p in self.model().parameters())
        parts = tessera.run_ranks(lambda: sum(tessera.to_local(p).numel() for p in self.model("fsdp=2").parameters()), 2, results="all")
        self.assertEqual(sum(parts), one)
        self.assertLess(max(parts), 0.55 * one)

    def test_09_26_axes_that_are_not_there(self):
        self.close(tessera.run_ranks(lambda: self.loss(self.model("pp=2,tp=2")).item(), 4), self.loss(self.model()).item())
        for mesh, missing in (("ep=4", "expert parallelism"), ("cp=4", "context parallelism")):
            self.refused(f"{missing} (is|are) not there yet; accepted: dp", lambda: self.model(mesh), 4)  # noqa: B023
        self.refused("no role; accepted: dp", lambda: self.model("world=4"), 4)

    # --- data

    def rows_of_a_sampler(self, **arguments):
        model = self.model("dp=2", **arguments)
        rows = TensorDataset(IDS)
        loader = DataLoader(rows, batch_size=2, sampler=DistributedSampler(rows, 2, tessera.rank(), shuffle=False))
        return [self.loss(model, ids).item() for ids, in loader]

    def test_10_a_distributed_sampler(self):
        self.refused('A DistributedSampler gives this rank part [01] of 2.*batch="local"', self.rows_of_a_sampler)
        model = self.model()
        wanted = [self.loss(model, IDS[rows]).item() for rows in ([0, 2, 1, 3], [4, 6, 5, 7])]
        self.close(tessera.run_ranks(lambda: self.rows_of_a_sampler(batch="local"), 2), wanted)

    def test_21_a_stream(self):
        class Stream(IterableDataset):
            def __iter__(self):
                return iter(IDS)

        def body(mesh):
            model = self.model(mesh, batch="local")
            return [self.loss(model, ids).item() for ids in tessera.shard_dataloader(DataLoader(Stream(), batch_size=3), model)]

        model = self.model()
        for mesh in ("dp=2", "dp=3"):
            seen = tessera.run_ranks(body, tessera.Mesh(mesh).size(), args=(mesh,))
            self.close(seen, [self.loss(model, ids).item() for ids in IDS.split(3)])

    # --- trainers that wrap a model, and do not know of ranks. (Those that do: trainer_test, accelerator_test, lightning_test, sft_test.)

    def test_11_12_13_wrappers_of_trainers(self):
        from torch.distributed.fsdp import fully_shard
        for name, wrap in (("DistributedDataParallel", torch.nn.parallel.DistributedDataParallel), ("torch.distributed.fsdp.fully_shard", fully_shard)):
            self.refused(rf"\[{name}\] LlamaForCausalLM is on a mesh: .*accepted: the model without the wrapper. Of a trainer: tessera.transformers.Trainer",
                         lambda: wrap(self.model("dp=2")))  # noqa: B023
        self.refused(r"\[torch.distributed.all_reduce\] a DTensor .*: what a DTensor holds is the value of all ranks already; accepted: x.item\(\)",
                     lambda: torch.distributed.all_reduce(self.loss(self.model("dp=2")).detach()))

    def test_wrappers_of_plain_models_are_as_they_were(self):
        store = torch.distributed.TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=datetime.timedelta(seconds=60))
        code = ("import sys, torch, tessera\nfrom torch import distributed as c\n"
                "c.init_process_group('gloo', store=c.TCPStore('127.0.0.1', int(sys.argv[1]), 1), rank=0, world_size=1)\n"
                "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\nx = model(torch.ones(1, 2)).sum().detach()\nc.all_reduce(x)\nprint('done')")
        done = subprocess.run([sys.executable, "-c", code, str(store.port)], capture_output=True, text=True, timeout=100)
        self.assertEqual(done.stdout, "done\n", done.stderr)

    # --- a model that changes

    def test_15_peft_before_and_after(self):
        try:
            import peft
        except ImportError:
            self.skipTest("peft is not installed")

        def with_lora(model):
            torch.manual_seed(0)
            return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False))

        wanted = self.loss(with_lora(self.model())).item()
        seen = tessera.run_ranks(lambda: (self.loss(tessera.parallelize(with_lora(self.model()), "dp=2,tp=2")).item(),
                                          self.loss(with_lora(self.model("dp=2,tp=2"))).item()), 4)
        self.close(seen, (wanted, wanted))

    def test_16_bfloat16(self):
        def body():
            model = self.model("dp=2,tp=2")
            with torch.autocast("cpu", torch.bfloat16):
                cast = self.loss(model)
            cast.backward()
            tessera.numerics("exact")
            return cast.item(), self.loss(tessera.parallelize(self.model().bfloat16(), "fsdp=4")).item()

        wanted = self.loss(self.model()).item()
        for loss in tessera.run_ranks(body, 4):
            self.assertLess(abs(loss / wanted - 1), 1e-2)

    def test_17_gradient_checkpointing(self):
        def body(mesh):
            model = self.model().train()
            model.gradient_checkpointing_enable()
            if mesh:
                tessera.parallelize(model, mesh)
            loss = model(input_ids=IDS, labels=IDS, use_cache=False).loss
            loss.backward()
            return loss.item(), tessera.full_tensor(model.lm_head.weight.grad)

        torch.testing.assert_close(tessera.run_ranks(body, 4, args=("dp=2,tp=2",)), body(""), rtol=1e-4, atol=1e-6)

    def test_more_words(self):
        self.refused(r"\[resize_token_embeddings\] LlamaForCausalLM is on a mesh.*accepted: resize_token_embeddings\(104\) before parallelize",
                     lambda: self.model("tp=2").resize_token_embeddings(104))

        def body():
            model = self.model()
            model.resize_token_embeddings(104, mean_resizing=False)
            return tessera.parallelize(model, "tp=2").resize_token_embeddings(104).weight.shape

        self.assertEqual(tessera.run_ranks(body, 2), (104, 32))

    # --- saving

    def test_19_stop_and_resume(self):
        """By torch.save of whole states, from one mesh to another."""
        def body(mesh, first):
            model = self.model(mesh)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
            if first:
                state = torch.load(f"{self.folder}/state.pt")
                model.load_state_dict(state["model"])
                optimizer.load_state_dict(state["optimizer"])
                schedule.load_state_dict(state["schedule"])
            losses = []
            for step in range(first, 4):
                loss = self.loss(model)
                loss.backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(loss.item())
                if step == 1:
                    torch.save({"model": tessera.full_state_dict(model), "optimizer": tessera.full_optimizer_state_dict(optimizer),
                                "schedule": schedule.state_dict()}, f"{self.folder}/state.pt")
            return losses

        whole = tessera.run_ranks(body, 4, args=("dp=2,tp=2", 0))
        self.close(tessera.run_ranks(body, 2, args=("fsdp=2", 2)), whole[2:])

        def saves_parts():
            model = self.model("tp=2")
            optimizer = torch.optim.AdamW(model.parameters())
            self.loss(model).backward()
            optimizer.step()
            torch.save(optimizer.state_dict(), f"{self.folder}/parts.pt")

        self.refused(r"cannot be pickled: .*of an optimizer torch.save\(tessera.full_optimizer_state_dict\(optimizer\), path\)", saves_parts)

    def test_22_a_folder_for_other_programs(self):
        def body():
            model = self.model("fsdp=2")
            model.save_pretrained(f"{self.folder}/out")
            return model.generate(IDS[:1, :4], max_new_tokens=4, do_sample=False, pad_token_id=0).tolist()

        seen = tessera.run_ranks(body, 2)
        opened = tf.AutoModelForCausalLM.from_pretrained(f"{self.folder}/out")
        self.assertEqual(opened.generate(IDS[:1, :4], max_new_tokens=4, do_sample=False, pad_token_id=0).tolist(), seen)

    # --- experts, numerics, notebooks

    def test_26_experts(self):
        config = tf.MixtralConfig(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                  num_local_experts=4)
        torch.manual_seed(0)
        tf.MixtralForCausalLM(config).save_pretrained(f"{self.folder}/experts")

        def body():
            model = tf.AutoModelForCausalLM.from_pretrained(f"{self.folder}/experts")
            wanted = self.loss(model).item()
            tessera.parallelize(model, "dp=2,tp=2")
            experts = [p for name, p in model.named_parameters() if "experts" in name]
            self.close(self.loss(model).item(), wanted)
            return sum(tessera.to_local(p).numel() for p in experts) / sum(p.numel() for p in experts)

        self.assertEqual(tessera.run_ranks(body, 4), 0.5)

    def test_30_exact_with_a_batch_of_twelve(self):
        """The lattice is said once."""
        def body(mesh):
            tessera.numerics("exact", "batch=12")
            ids = torch.cat([IDS, IDS[:4]])
            return self.loss(self.model(mesh), ids).item()

        one, *others = (tessera.run_ranks(body, tessera.Mesh(mesh).size(), args=(mesh,)) for mesh in ("dp=1", "dp=3", "dp=2,tp=2"))
        self.assertEqual(others, [one, one])

    def test_25_a_cell_of_a_notebook(self):
        self.assertEqual(tessera.run_ranks(lambda count: (tessera.rank(), count), 3, args=(5,), results="all"), [(0, 5), (1, 5), (2, 5)])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
