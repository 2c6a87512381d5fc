// A file of weights, as a worker looks at it.

#include "worker/node/safetensors_check.h"

#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const sft::fuzz::InputFile file(data, size);
  const absl::Status checked = sft::worker::CheckSafetensors(file.path());
  if (checked.ok()) sft::fuzz::Require(size >= 10);  // a length and "{}"
  return 0;
}
