#include "common/spec/job_protocol.h"

#include <algorithm>

#include "common/spec/fields.h"
#include "common/spec/job_json.h"

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
  Json::json_pointer at;
  Json fallback;  // its default
};

std::vector<NewerField> NewerFields() {
  const Json defaults = ToJson(JobSpec());
  std::vector<NewerField> newer;
  for (const Field* field : Fields()) {
    if (field->since == 1 || field->server_only) continue;
    const Json::json_pointer at = PointerTo(field->key);
    newer.push_back({field, at, defaults.at(at)});
  }
  return newer;
}

}  // namespace

ProtocolNeed NeedOf(const Json& job) {
  static const std::vector<NewerField> newer = NewerFields();
  ProtocolNeed need;
  for (const auto& [field, at, fallback] : newer) {
    const Json& value = job.at(at);
    const bool as_before = !field->before.empty() && value == std::string(field->before);
    if (as_before || value == fallback) continue;
    need.protocol = std::max(need.protocol, field->since);
    need.keys.emplace_back(field->key);
  }
  return need;
}

Json ForProtocol(const Json& job, int protocol) {
  Json older = job;
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
