// A DeepSpeed JSON, over a job for four GPUs.

#include "common/spec/resolve.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sft::spec;  // NOLINT: one function
  const std::string text(reinterpret_cast<const char*>(data), size);
  const Resolution resolution =
      Resolve("[job]\nmodel = \"m\"\ndata = \"d.jsonl\"\n[compute]\nvariant = \"H100-4x\"\n",
              "job.toml", {{"train.deepspeed_config", text, "--deepspeed", OverrideKind::kFlag}});
  sft::fuzz::Require(resolution.problems.size() < 2000 && resolution.warnings.size() < 2000);
  return 0;
}
