"""The tables of tests/tidy/tidy.py: who may include whom, how long things may be, what is banned."""

# Folder -> folders whose headers it may include. The longest matching prefix of a file's path counts.
# A folder may always include itself. docs/architecture.md explains the edges.
EDGES = {
    "common/base": [],
    "common/io": ["common/base"],
    "common/columnar": ["common/base", "common/io"],
    "common/data": ["common/base", "common/io", "common/columnar"],
    "common/obs": ["common/base"],
    "common/grade": ["common/base"],
    "common/spec": ["common/base", "common/grade"],
    "common/plan": ["common/base", "common/spec"],
    "common/tls": ["common/base", "common/io"],
    "common/rpc": ["common/base", "common/io", "proto"],
    "common/hub": ["common/base", "common/io"],
    "server/state": ["common/base", "common/spec"],
    "server/sched": ["common/base", "server/state"],
    "server/database": ["common/base", "common/io", "common/obs"],
    "server/store": ["common/base", "common/io", "common/obs", "common/spec", "proto", "server/state",
                     "server/database"],
    "server/blob": ["common/base", "common/io", "common/obs", "server/state"],
    "server/core": ["common", "proto", "server/state", "server/database", "server/store",
                    "server/blob"],
    "server/resume": ["common", "proto", "server/state", "server/database", "server/store",
                      "server/blob", "server/core"],
    "server/gangs": ["common", "proto", "server/state", "server/sched", "server/database",
                     "server/store", "server/blob", "server/core", "server/resume"],
    "server/fleet": ["common", "proto", "server/state", "server/sched", "server/database",
                     "server/store", "server/blob", "server/core", "server/resume", "server/gangs"],
    "server/stored": ["common", "proto", "server/state", "server/database", "server/store",
                      "server/blob", "server/core", "server/resume", "server/gangs", "server/fleet"],
    "server/scheduling": ["common", "proto", "server/state", "server/sched", "server/database",
                          "server/store", "server/core", "server/resume", "server/gangs",
                          "server/fleet"],
    "server/jobs": ["common", "proto", "server/state", "server/sched", "server/store", "server/blob",
                    "server/core", "server/resume", "server/gangs", "server/fleet",
                    "server/scheduling"],
    "server/webhooks": ["common", "proto", "server/state", "server/store", "server/core"],
    "server/oidc": ["common", "proto", "server/state", "server/store", "server/core"],
    "server/door": ["common/base", "common/io", "common/obs", "proto", "server/state", "server/store", "server/core"],
    "server/services": ["common", "proto", "server/state", "server/store", "server/blob",
                        "server/core", "server/resume", "server/gangs", "server/fleet",
                        "server/stored", "server/scheduling", "server/jobs", "server/webhooks",
                        "server/oidc", "server/door"],
    "server/calls": ["common", "proto", "server/core", "server/fleet", "server/door"],
    "server/rpc": ["common", "proto", "server/core", "server/door", "server/calls"],
    "server/openai": ["common/base", "proto", "server/state"],
    "server/http": ["common", "proto", "server/state", "server/store", "server/core", "server/fleet",
                    "server/stored", "server/jobs", "server/door", "server/openai"],
    "server/app": ["common", "proto", "server"],
    "worker/channel": ["common/base", "common/io"],
    "worker/shim": ["common/base", "common/io", "worker/channel"],
    "worker/base": ["common", "proto", "worker/channel"],
    "worker/gpus": ["common", "proto", "worker/base"],
    "worker/hub": ["common/base", "common/io", "common/hub"],
    "worker/transfer": ["common", "proto", "worker/base"],
    "worker/shipping": ["common", "proto", "worker/channel", "worker/base", "worker/transfer"],
    "worker/node": ["common", "proto", "worker/channel", "worker/base", "worker/gpus", "worker/hub", "worker/transfer"],
    "worker/attempt": ["common", "proto", "worker/channel", "worker/base", "worker/gpus",
                       "worker/hub", "worker/transfer", "worker/shipping", "worker/node"],
    "worker/daemon": ["common", "proto", "worker/channel", "worker/base", "worker/gpus",
                      "worker/hub", "worker/transfer", "worker/shipping", "worker/node", "worker/attempt",
                      "worker/grading"],
    "worker/preview": ["common/base", "common/spec", "common/plan", "common/io", "common/data", "worker/engine/base",
                       "worker/engine/data"],
    "worker/grading": ["common/base", "common/spec", "common/io", "common/grade"],
    "worker/rank": ["common/base", "common/spec", "common/plan", "common/io", "common/data", "common/grade",
                    "worker/channel", "worker/grading", "worker/engine"],
    "worker/engine/base": ["common/base"],
    "worker/engine/data": ["common/base", "common/spec", "common/io", "common/data", "worker/engine/base"],
    "worker/engine/kernels": ["common/plan", "worker/engine/base"],
    "worker/engine/dist": ["common/base", "common/io", "worker/channel", "worker/engine/base"],
    "worker/engine/checkpoint": ["common/base", "common/spec", "common/plan", "common/io",
                                 "worker/engine/base", "worker/engine/data"],
    "worker/engine/optim": ["common/base", "common/spec", "worker/engine/base",
                            "worker/engine/kernels", "worker/engine/dist"],
    "worker/engine/weights": ["common/base", "common/spec", "common/plan", "worker/engine/base",
                              "worker/engine/kernels", "worker/engine/dist",
                              "worker/engine/checkpoint", "worker/engine/optim"],
    "worker/engine/nn": ["common/base", "common/spec", "common/plan", "worker/engine/base", "worker/engine/dist",
                         "worker/engine/kernels", "worker/engine/weights"],
    "worker/engine/model": ["common/base", "common/spec", "common/plan", "worker/engine/base",
                            "worker/engine/kernels", "worker/engine/weights", "worker/engine/nn",
                            "worker/engine/checkpoint"],
    "worker/engine/train": ["common", "worker/engine"],
    "worker/engine/generate": ["common/base", "common/spec", "worker/engine/base",
                               "worker/engine/kernels", "worker/engine/weights",
                               "worker/engine/nn", "worker/engine/model", "worker/engine/data",
                               "worker/engine/checkpoint", "worker/engine/dist",
                               "worker/engine/train"],
    "worker/engine/export": ["common/base", "common/io", "common/spec", "common/plan", "worker/engine/base",
                             "worker/engine/weights", "worker/engine/model", "worker/engine/data",
                             "worker/engine/checkpoint", "worker/engine/dist",
                             "worker/engine/train", "worker/engine/generate"],
    "worker/engine/cuda": ["common/base", "common/plan", "worker/engine/base",
                           "worker/engine/kernels", "worker/engine/dist"],
    "client/base": ["common", "proto", "client/output"],
    "client/output": ["common", "proto"],
    "client/top": ["common", "proto", "client/output", "client/base"],
    "client/commands": ["common", "proto", "client/output", "client/base", "client/top"],
    "client/app": ["common", "proto", "client"],
}

# The dashboard's modules: folder -> folders that they may import from, with relative paths.
DASHBOARD = "server/dashboard/"
DASHBOARD_EDGES = {
    "lib": ["lib", "vendor"],
    "parts": ["lib", "parts"],
    "pages": ["lib", "parts"],
    "": ["lib", "parts", "pages"],
}
DASHBOARD_BANNED = [
    (r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|\beval\(|new Function", "a template: names are text"),
    (r"https?://", "the server's own paths: pages ask no other host"),
]

# Lines of a file and of a function: over the soft limit is printed, over the hard one fails.
FILE_SOFT, FILE_HARD = 500, 800
FUNCTION_SOFT, FUNCTION_HARD = 70, 120

# (pattern, where it is allowed (path prefixes), what to use instead)
BANNED = [
    (r"std::this_thread::sleep|absl::SleepFor|\busleep\(|\bnanosleep\(", ["common/base/clock.cc"],
     "Clock::Sleep, or wait for a condition"),
    (r"system_clock::now|steady_clock::now|absl::Now\(|\bgettimeofday\(", ["common/base/clock.cc"],
     "a Clock&"),
    (r"\bgetenv\(", ["common/base/env.cc"], "GetEnv (common/base/env.h)"),
    (r"\b(s?rand|random)\(\)", [], "a seeded generator"),
    (r"absl::Mutex\b", [], "sft::Mutex (common/base/mutex.h)"),
    (r"std::cout|std::cerr", ["client/"], "the log, or fmt::print in a main"),
    (r"catch \(\.\.\.\)", ["worker/rank/", "worker/engine/base/", "worker/engine/dist/"],
     "a typed catch"),
    (r"sqlite3_exec\(", ["server/database/"], "the store"),
    # The server's wire; elsewhere a job is a spec::JobSpec (store::ReadSpec).
    (r"resolved_json", ["server/store/", "server/database/migrations.cc", "server/core/convert.cc", "server/gangs/desired.cc",
                        "server/jobs/job_intake.cc", "worker/", "client/"],
     "JobRecord::spec"),
    (r"ParseFromString\(.*progress", ["server/store/progress.cc"], "AttemptRecord::progress"),
    (r"\bTODO\b|\bFIXME\b|\bXXX\b", [], "doing it, or an error that says so"),
    # A private constructor is reached by unique_ptr<T>(new T(...)); a bare new is not owned.
    (r"^(?!.*unique_ptr<\w+>(?: \w+)?\(new ).*(?<![\w.>])new [A-Z]\w*[({]", [], "std::make_unique"),
    (r"^\s*delete [a-z]", [], "a smart pointer"),
    (r"#include <torch/torch\.h>|#include <torch/all\.h>", [], "narrow ATen headers"),
]
BANNED_IN_HEADERS = [(r"^\s*using namespace", "qualified names")]

# Includes that must not meet in one process: folders whose sources may include LibTorch, and those
# that may include protobuf or gRPC.
TORCH = r"#include [<\"](ATen|c10|torch)/"
TORCH_FOLDERS = ["worker/engine/", "worker/rank/", "tests/unit/worker/engine/",
                 "tests/unit/worker/rank/", "tests/parity/", "tests/gpu/", "tests/bench/"]
PROTOBUF = r"#include [<\"](grpcpp|grpc|google/protobuf|google/rpc|sft/v1)/"
PROTOBUF_FOLDERS = ["common/rpc/", "server/", "worker/base/", "worker/gpus/", "worker/transfer/",
                    "worker/shipping/", "worker/node/", "worker/attempt/", "worker/daemon/", "client/", "tests/unit/common/rpc/",
                    "tests/unit/server/", "tests/unit/worker/", "tests/unit/client/",
                    "tests/e2e/", "tests/fuzz/"]

# Hand-made reasons for what is over a hard limit: path or path:function -> why. Empty is the aim.
EXCEPTIONS = {}
