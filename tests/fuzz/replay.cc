// Gives each file of the named folders to the target once: what fuzzing has found stays found. None
// may take the memory or the time that a small input never needs.

#include <fmt/format.h>
#include <sys/resource.h>

#include "common/io/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
#ifndef __SANITIZE_ADDRESS__
  const rlimit memory{2u << 30, 2u << 30};
  setrlimit(RLIMIT_AS, &memory);
#endif
  const rlimit seconds{100, 100};  // of processor time, for all of them
  setrlimit(RLIMIT_CPU, &seconds);
  int count = 0;
  for (int i = 1; i < argc; ++i) {
    const auto names = sft::io::ListDir(argv[i]);
    for (const std::string& name : names.value_or(std::vector<std::string>())) {
      const auto bytes = sft::io::ReadFile(std::string(argv[i]) + "/" + name);
      if (!bytes.ok()) {
        fmt::print(stderr, "{}\n", sft::Message(bytes.status()));
        return 1;
      }
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes->data()), bytes->size());
      ++count;
    }
  }
  fmt::print("{} inputs\n", count);
  return count > 0 ? 0 : 1;
}
