// A data set as it was uploaded.

#include "common/data/dataset_check.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const sft::fuzz::InputFile file(data, size);
  for (const char* name : {"rows", "rows.csv", "rows.tsv", "rows.txt"}) {
    const auto found = sft::data::CheckDataset(file.path(), name);
    if (found.ok()) sft::fuzz::Require(found->rows > 0 && found->odd_rows <= found->rows);
  }
  return 0;
}
