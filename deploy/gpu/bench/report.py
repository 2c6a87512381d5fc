"""Tables from the lines of raw.jsonl."""

import json
import math

import rows as table


def load(path):
    """The last record of each setting, in the order of the first."""
    latest = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip():
                record = json.loads(line)
                latest[record["row"], record["side"], record["setting"]] = record
    return list(latest.values())


def correct(record):
    return record["status"] == "ok" and all(check["ok"] for check in record.get("checks", []))


def rate(record):
    return record.get("tokens_per_second") or 0.0


def best(records):
    return max((record for record in records if correct(record)), key=rate, default=None)


def measured(record, key, form):
    value = record.get(key)
    return "-" if value is None else form.format(value)


def outcome(record):
    if record["status"] != "ok":
        return f"{record['status']}: {record['error'][:120]}"
    failed = [f"FAIL {check['name']}: {check['detail']}" for check in record.get("checks", []) if not check["ok"]]
    return "; ".join(failed) or (f"{len(record['checks'])} checks" if "checks" in record else "ran")


def settings_table(records):
    lines = ["| row | setting | GPUs | tok/s | of the best peer | MFU | GB reserved (allocated) | first step s | outcome |",
             "|---|---|---|---|---|---|---|---|---|"]
    for record in records:
        peer = best([other for other in records if other["row"] == record["row"] and other["side"] == "peer"])
        compared = peer and correct(record) and record["side"] in ("ours", "peer")
        ratio = f"{rate(record) / rate(peer):.3f}" if compared else "-"
        memory = measured(record, "reserved_gb", "{:.1f}")
        if record.get("allocated_gb") is not None:
            memory += f" ({record['allocated_gb']:.1f})"
        mfu = f"{record['mfu']:.3f}" if record.get("mfu") else "-"
        lines.append(f"| {record['row']} | {record['setting']} | {record['gpus']} | "
                     f"{measured(record, 'tokens_per_second', '{:,.0f}')} | {ratio} | {mfu} | {memory} | "
                     f"{measured(record, 'first_step_s', '{:.1f}')} | {outcome(record).replace('|', '/')} |")
    return lines


class GoalReader:
    """What the records of one row say of one goal: (text, value or None) pairs; None: not measured."""

    def __init__(self, goal, records):
        self.goal = goal
        self.ours = [record for record in records if record["side"] == "ours"]
        self.peers = [record for record in records if record["side"] == "peer" and record["status"] == "ok"]
        free = [record for record in self.ours if not record.get("within_memory_of")]
        self.record = self.named(goal.setting) if goal.setting else best(free)

    def named(self, name):
        return next((record for record in self.ours if record["setting"] == name and correct(record)), None)

    def ratio(self, top, bottom):
        return rate(top) / rate(bottom) if top and bottom and rate(bottom) else None

    def field(self, key):
        return self.record.get(key) if self.record else None

    def best_peer(self):
        return [("of the best peer", self.ratio(self.record, best(self.peers)))]

    def default_peer(self):
        default = next((peer for peer in self.peers if peer["default"]), None)
        return [("of the peer's default", self.ratio(self.record, default))]

    def setting(self):
        subject = self.named(self.goal.subject)
        return [(f"of \"{self.goal.subject}\"", self.ratio(self.record, subject))]

    def each_peer_memory(self):
        pairs = []
        for peer in self.peers:
            inside = [record for record in self.ours if record["status"] == "ok"
                      and record["reserved_gb"] <= peer["reserved_gb"]]
            name = f"of {peer['setting']} within its {peer['reserved_gb']:.1f} GB"
            pairs.append((name, self.ratio(best(inside), peer)))
        return pairs

    def tokens_per_second(self):
        return [("tok/s", self.field("tokens_per_second"))]

    def mfu(self):
        return [("MFU", self.field("mfu") or None)]

    def memory_gb(self):
        return [("GB reserved, at most", self.field("reserved_gb"))]

    def first_step_s(self):
        return [("seconds to the first step, at most", self.field("first_step_s"))]

    def memory_below(self):
        subject = self.named(self.goal.subject)
        saved = subject["reserved_gb"] - self.record["reserved_gb"] if subject and self.record else None
        return [(f"GB below \"{self.goal.subject}\"", saved)]

    def val_fall(self):
        losses = [entry["loss"] for entry in self.field("validation") or []]
        return [("share by which validation loss fell", 1 - losses[-1] / losses[0] if losses else None)]

    def val_loss(self):
        subject = self.named(self.goal.subject)
        pair = [(record or {}).get("validation") for record in (self.record, subject)]
        error = abs(pair[0][-1]["loss"] / pair[1][-1]["loss"] - 1) if all(pair) else None
        return [(f"validation loss apart from \"{self.goal.subject}\", at most", error)]


AT_MOST = ("memory_gb", "first_step_s", "val_loss")


def goals_table(records):
    lines = ["| row | measure | goal | measured | |", "|---|---|---|---|---|"]
    present = {record["row"] for record in records}
    for row in table.ROWS:
        mine = [record for record in records if record["row"] == row.name]
        for goal in row.goals if row.name in present else ():
            for text, value in getattr(GoalReader(goal, mine), goal.kind)():
                if value is None or not math.isfinite(value):
                    shown, verdict = "-", "not measured"
                else:
                    met = value <= goal.target if goal.kind in AT_MOST else value >= goal.target
                    shown, verdict = f"{value:,.4g}" if value < 1000 else f"{value:,.0f}", "met" if met else "MISSED"
                lines.append(f"| {row.name} | {text} | {goal.target:g} | {shown} | {verdict} |")
    return lines


PLAN_MEMORY, PLAN_SPEED = 0.05, 0.10  # how far the plan may be from what is measured


def plan_table(records):
    lines = ["| row | setting | GB reserved, predicted and measured | tok/s, predicted and measured | |",
             "|---|---|---|---|---|"]
    for record in records:
        plan = next((event for event in record.get("events", []) if event["event"] == "plan"), None)
        if record["side"] != "ours" or plan is None or not rate(record):
            continue
        memory, speed = plan["reserved_bytes"], plan["predicted_tokens_per_second"]
        apart = memory["predicted"] / memory["measured"] - 1, speed / rate(record) - 1
        held = abs(apart[0]) <= PLAN_MEMORY and abs(apart[1]) <= PLAN_SPEED
        lines.append(f"| {record['row']} | {record['setting']} | {memory['predicted'] / 1e9:.1f}, "
                     f"{memory['measured'] / 1e9:.1f} ({apart[0]:+.1%}) | {speed:,.0f}, {rate(record):,.0f} "
                     f"({apart[1]:+.1%}) | {'held' if held else 'MISSED'} |")
    return lines


def machines(records):
    lines = []
    for machine in {json.dumps(record["machine"], sort_keys=True): record["machine"] for record in records}.values():
        names = sorted(set(machine["gpus"])) or ["no GPU"]
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        lines.append(f"{machine['date']}: {len(machine['gpus'])} x {'; '.join(names)}; {machine['cores']} cores; "
                     f"kernel {machine['kernel']}; Python {machine['python']}; {versions}; {machine['sft_rank']}, "
                     f"revision {machine['revision']}.")
    return lines


def markdown(records):
    if not records:
        return "Nothing was run.\n"
    parts = [machines(records), settings_table(records), goals_table(records), plan_table(records)]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"
