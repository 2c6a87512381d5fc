// Short texts of requests, flags and files: page tokens, names, tokens, times, addresses, values of
// `--set` for each type of key; and what looks through texts of any length.

#include "common/base/clock.h"
#include "common/base/duration.h"
#include "common/base/toml_limits.h"
#include "common/base/utf8.h"
#include "common/rpc/endpoint.h"
#include "common/spec/fields.h"
#include "common/spec/template_check.h"
#include "common/spec/value.h"
#include "server/door/page_token.h"
#include "server/state/access.h"
#include "server/state/names.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sft;  // NOLINT: one function
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto position = server::FromToken(text);
  if (position.ok() && *position > 0) {
    fuzz::Require(server::FromToken(server::ToToken(*position)).value() == *position);
  }
  (void)server::ParseJobName(text);
  (void)server::ReadToken(text);
  (void)ParseDuration(text);
  (void)ParseUtc(text);
  (void)rpc::ParseEndpoint(text);
  (void)FindTomlExcess(text);
  (void)spec::TemplateProblem(text);
  fuzz::Require(IsUtf8(ToUtf8(text)));
  fuzz::Require(!FindHidden(text).empty() || IsUtf8(text));
  for (const spec::Field* field : spec::Fields()) {
    const auto value = spec::ParseText(*field, text);
    // What was taken is shown as something that is taken again.
    if (value.ok() && field->type != spec::Type::kList) {
      fuzz::Require(spec::ParseText(*field, spec::ToText(*field, *value)).ok());
    }
  }
  (void)spec::NearestKey(text);
  (void)spec::NearestTable(text);
  (void)spec::NearestVariable(text);
  return 0;
}
