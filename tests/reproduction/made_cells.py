"""Cells as the grid writes them, with drawn answers, for the tests of tables."""

import json
from pathlib import Path

import numpy as np

TASKS = ("piqa", "arc_challenge", "commonsense_qa", "social_i_qa", "mmlu")
ODDS = {"Pretrained": 0.35, "LoRA": 0.4, "LoRA16": 0.4, "Bitune": 0.45}
SETTINGS = {
    "data": {"source": "{root}/ultrafeedback_binarized/train.jsonl", "batch_size": 10, "max_length": 224},
    "trainer": {"max_steps": 40},
}


def cell(method: str, seed: int = 42, tasks=TASKS, n: int = 100, right=None, **said) -> dict:
    """A finished cell; `right` gives answers of some tasks, `said` replaces or adds anything."""
    table, model = said.get("table", "table1"), said.get("model", "smollm2")
    right = {task: _answers(method, seed, task, n) for task in tasks} | (right or {})
    trained = method != "Pretrained"
    settings = {"model": {"base": model, "method": method}, "tasks": dict.fromkeys(right, n)}
    record = {
        "table": table, "profile": "cpu", "model": model, "method": method, "seed": seed, "status": "done", "error": None,
        "settings": settings | ({"seed": seed} | SETTINGS if trained else {}),
        "run": None, "updates": 40 if trained else 0, "lr": 1e-3 if trained else None,
        "train_seconds": 280.0 if trained else None, "evaluate_seconds": 120.0, "peak_memory_gb": 2.1,
        "trained_parameters": 4_815_420, "loss_validation": 1.85,
        "scores": {task: {"acc": float(np.mean(a)), "n": len(a), "stderr": 0.05} for task, a in right.items()},
        "right": right, "prompt_hash": {task: f"{task}-{len(a)}" for task, a in right.items()},
        "alpha": None, "versions": {"bitune_pl": "0.1.0", "torch": "2.13.0"},
    }  # fmt: skip
    return record | said


def failed(method: str, seed: int = 42, error: str = "CUDA out of memory.", **said) -> dict:
    return cell(method, seed) | {"status": "failed", "error": error, "scores": {}, "right": {}} | said


def put(folder: Path, *records: dict) -> Path:
    """Write cells as the grid names them; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for record in records:
        name = f"{record['model']}--{record['method'].lower().replace(' ', '-')}--{record['seed']}.json"
        (folder / name).write_text(json.dumps(record))
    return folder


def _answers(method: str, seed: int, task: str, n: int) -> list[int]:
    """Questions of one difficulty for all methods and seeds."""
    hard = np.random.default_rng(len(task)).random(n)
    luck = np.random.default_rng([seed, len(method), len(task)]).normal(0, 0.15, n)
    return [int(value) for value in hard + luck < ODDS.get(method, 0.42)]
