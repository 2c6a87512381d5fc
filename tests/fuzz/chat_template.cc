// A chat template and, after a NUL byte each, messages and tools in JSON.

#include <csetjmp>
#include <string>

#include "tests/fuzz/input.h"
#include "worker/engine/data/ffi.h"

namespace {

std::string Piece(std::string_view& rest) {
  const size_t end = rest.find('\0');
  std::string piece(rest.substr(0, end));
  rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
  return piece;
}

// A template that takes more memory than it may ends a process of ours with its handler; here the
// rendering is left as it stands, what it allocated with it.
std::jmp_buf g_before_rendering;
void LeaveRendering(int32_t refused, const char*, size_t, size_t) {
  sft::fuzz::Require(refused == 0);
  std::longjmp(g_before_rendering, 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string source = Piece(rest);
  std::string messages = Piece(rest), tools = Piece(rest);
  if (messages.empty()) messages = R"([{"role":"user","content":"hi"}])";
  if (tools.empty()) tools = "null";
  const std::string variables = R"({"bos_token":"<s>","eos_token":"</s>","date":"2024-07-26"})";
  sft_set_memory_handler(&LeaveRendering);
  if (setjmp(g_before_rendering) != 0) return 0;
  SftTemplate* chat_template = nullptr;
  const sft::engine::FfiResult compiled(sft_template_compile(
      source.data(), source.size(), variables.data(), variables.size(), &chat_template));
  if (!compiled.ok()) return 0;
  {
    const sft::engine::FfiResult rendered(
        sft_template_render(chat_template, messages.data(), messages.size(), tools.data(),
                            tools.size(), variables.data(), variables.size(), 1));
    (void)rendered.text();
  }
  sft_template_close(chat_template);
  return 0;
}
