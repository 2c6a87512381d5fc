#include <cstdio>

#include "common/spec/docs.h"

int main() {
  const std::string text = sft::spec::ConfigMarkdown();
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
}
