// sft-data: what a data set is to a model, before a job. Exit codes as of sft-rank.

#include <fmt/format.h>

#include <cstdio>

#include "common/base/version.h"
#include "worker/engine/base/error.h"
#include "worker/preview/preview.h"

namespace sft::preview {
namespace {

constexpr int kOk = 0, kUsage = 2, kUser = 64, kInfrastructure = 65, kInternal = 66;

int Fail(int code, const std::string& message, const std::string& advice = "") {
  std::fputs(fmt::format("sft-data: {}\n", message).c_str(), stderr);
  if (!advice.empty()) std::fputs((advice + "\n").c_str(), stderr);
  return code;
}

int Show(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return kOk;
  return Fail(kInfrastructure, "standard output cannot be written to");
}

int Main(int argc, char** argv) {
  const auto options = ParseOptions(std::vector<std::string>(argv + 1, argv + argc));
  if (!options.ok()) {
    return Fail(kUsage, std::string(Message(options.status())), "Try: sft-data --help");
  }
  if (options->help) return Show(HelpText());
  if (options->version) return Show(fmt::format("sft-data {}\n", kVersion));
  try {
    const Found found = Preview(*options);
    const int shown = Show(found.text);
    return shown == kOk && found.refused ? kUser : shown;
  } catch (const engine::UserError& error) {
    return Fail(kUser, error.what(), error.advice());
  } catch (const engine::InfrastructureError& error) {
    return Fail(kInfrastructure, error.what(), error.advice());
  } catch (const std::exception& error) {
    return Fail(kInternal, error.what());
  }
}

}  // namespace
}  // namespace sft::preview

int main(int argc, char** argv) { return sft::preview::Main(argc, argv); }
