// JSON that somebody else has written: any text, what a rank says in its event file, the files
// between a worker and its shims and ranks, and the config.json of a model.

#include "common/base/json.h"
#include "common/plan/model_config.h"
#include "tests/fuzz/input.h"
#include "worker/channel/event.h"
#include "worker/channel/launch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sft;  // NOLINT: one function
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = ParseJson(text);
  const auto ordered = ParseOrderedJson(text);
  fuzz::Require(json.is_discarded() == ordered.is_discarded());
  if (!json.is_discarded()) {
    // What was read can be written, and reads back as the same.
    const std::string written = DumpJson(ordered);
    fuzz::Require(DumpJson(ParseOrderedJson(written)) == written);
    fuzz::Require(DumpJson(ParseJson(written)) == DumpJson(json));
  }
  (void)ParseJson(text, {.comments = true, .keys_once = true});
  (void)plan::ParseModelConfig(text);
  (void)channel::ParseLine(text);
  (void)channel::ParseCommand(text);
  (void)channel::ParseAnswer(text);
  (void)channel::ParseLogGap(text);
  (void)channel::ParseRankLaunch(text);
  (void)channel::ParseShimLaunch(text);
  (void)channel::ParseShimStatus(text);
  return 0;
}
