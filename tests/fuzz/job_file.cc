// A job file of any form, and after a NUL byte each a change as `--set` takes it: "key=value".

#include "common/spec/job_file_reader.h"
#include "common/spec/job_json.h"
#include "common/spec/resolve.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sft;  // NOLINT: one function
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string text(rest.substr(0, rest.find('\0')));
  std::vector<spec::Override> changes;
  for (size_t end; (end = rest.find('\0')) != rest.npos && changes.size() < 16;) {
    rest.remove_prefix(end + 1);
    const std::string change(rest.substr(0, rest.find('\0')));
    const size_t equals = change.find('=');
    if (equals == change.npos) continue;
    changes.push_back(
        {change.substr(0, equals), change.substr(equals + 1), "--set", spec::OverrideKind::kSet});
  }
  (void)spec::ReadYaml(text);
  (void)spec::ReadJson(text);
  // Without an ending the text says its form.
  const spec::Resolution resolution = spec::Resolve(text, "job", changes, {});
  (void)spec::NeededFiles(resolution);
  if (!resolution.ok()) return 0;
  // What was accepted survives the way to a node.
  const auto json = spec::ToJson(resolution.spec);
  const auto again = spec::FromJson(json);
  fuzz::Require(again.ok() && spec::ToJson(*again) == json);
  return 0;
}
