#include "common/spec/job_protocol.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <type_traits>

#include "common/spec/fields.h"
#include "common/spec/job_json.h"
#include "common/spec/visit.h"

namespace sft::spec {
namespace {

using Json = nlohmann::json;

Json::json_pointer PointerTo(std::string_view key) {
  std::string path = "/" + std::string(key);
  std::replace(path.begin(), path.end(), '.', '/');
  return Json::json_pointer(path);
}

// A key that was added after the first protocol and that workers act on.
struct NewerField {
  const Field* field = nullptr;
  Json fallback;  // its default
};

std::map<std::string_view, NewerField> NewerFields() {
  const Json defaults = ToJson(JobSpec());
  std::map<std::string_view, NewerField> newer;
  for (const Field* field : Fields()) {
    if (field->since == 1 || field->server_only) continue;
    newer[field->key] = {field, defaults.at(PointerTo(field->key))};
  }
  return newer;
}

// As ToJson writes it.
template <typename T>
Json ValueOf(const T& member) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(EnumName(member));
  } else {
    return member;
  }
}

}  // namespace

ProtocolNeed NeedOf(const JobSpec& spec) {
  static const std::map<std::string_view, NewerField> newer = NewerFields();
  ProtocolNeed need;
  VisitSpec(spec, [&](std::string_view key, const auto& member) {
    const auto found = newer.find(key);
    if (found == newer.end()) return;
    const Field& field = *found->second.field;
    const Json value = ValueOf(member);
    const bool as_before = !field.before.empty() && value == std::string(field.before);
    if (as_before || value == found->second.fallback) return;
    need.protocol = std::max(need.protocol, field.since);
    need.keys.emplace_back(key);
  });
  return need;
}

Json ForProtocol(const JobSpec& spec, int protocol) {
  Json older = ToJson(spec);
  for (const Field* field : Fields()) {
    const Json::json_pointer at = PointerTo(field->key);
    if (field->since <= protocol || !older.contains(at)) continue;
    // A table left without keys was not known to the older worker either.
    for (Json::json_pointer gone = at; !gone.empty(); gone = gone.parent_pointer()) {
      Json& table = older.at(gone.parent_pointer());
      table.erase(gone.back());
      if (!table.empty()) break;
    }
  }
  return older;
}

}  // namespace sft::spec
