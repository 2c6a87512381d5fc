// sft-call-every-rpc SERVER CA_FILE TOKEN_FILE [FIELD=VALUE]...: calls each rpc of the contract
// with these values in its request and prints a line of JSON for each: method, code, message, and
// the answers as far as they are text. CA_FILE "-": without TLS; TOKEN_FILE "-": without a token.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/rpc/channel.h"
#include "tests/e2e/every_rpc.h"

namespace {

std::string ReadOrDie(const std::string& path) {
  if (path == "-") return "";
  const auto text = sft::io::ReadFile(path, 1 << 20);
  if (!text.ok()) {
    fmt::print(stderr, "{}\n", sft::Message(text.status()));
    std::exit(1);
  }
  return *text;
}

std::string Printable(std::string bytes) {
  std::replace_if(
      bytes.begin(), bytes.end(), [](unsigned char c) { return c < 32 || c > 126; }, ' ');
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: sft-call-every-rpc SERVER CA_FILE TOKEN_FILE [FIELD=VALUE]...\n");
    return 2;
  }
  std::string token = ReadOrDie(argv[3]);
  token.resize(token.find_last_not_of('\n') + 1);
  std::map<std::string, std::string> fields;
  for (int i = 4; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t at = text.find('=');
    fields[text.substr(0, at)] = at == text.npos ? "" : text.substr(at + 1);
  }
  const auto channel =
      sft::rpc::MakeChannel(argv[1], {.authority_pem = ReadOrDie(argv[2]), .token = token});
  for (const auto& outcome : sft::testing_support::CallEveryRpc(channel, fields)) {
    const nlohmann::json line = {{"method", outcome.method},
                                 {"code", static_cast<int>(outcome.code)},
                                 {"message", Printable(outcome.message)},
                                 {"answers", Printable(outcome.answers)}};
    fmt::print("{}\n", sft::DumpJson(line));
  }
  return 0;
}
