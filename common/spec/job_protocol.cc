#include "common/spec/job_protocol.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <type_traits>

#include "common/spec/fields.h"
#include "common/spec/job_json.h"
#include "common/spec/template_settings.h"
#include "common/spec/visit.h"

namespace sft::spec {
namespace {

using Json = nlohmann::json;

Json::json_pointer PointerTo(std::string_view key) {
  std::string path = "/" + std::string(key);
  std::replace(path.begin(), path.end(), '.', '/');
  return Json::json_pointer(path);
}

// A key that was added after the first protocol, or has values that were, and that workers act on.
struct NewerField {
  const Field* field = nullptr;
  Json fallback;  // its default
};

std::map<std::string_view, NewerField> NewerFields() {
  const Json defaults = ToJson(JobSpec());
  std::map<std::string_view, NewerField> newer;
  for (const Field* field : Fields()) {
    if (field->server_only || (field->since == 1 && field->newer_choices.empty())) continue;
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

// The lowest protocol whose workers act on this value of the key.
int ProtocolOf(const NewerField& newer, const Json& value) {
  const Field& field = *newer.field;
  if (value.is_string()) {
    const auto later = SplitWords(field.newer_choices, '|');
    const std::string& text = value.get_ref<const std::string&>();
    if (std::find(later.begin(), later.end(), text) != later.end()) return field.newer_since;
  }
  const bool as_before = !field.before.empty() && value == std::string(field.before);
  return as_before || value == newer.fallback ? 1 : field.since;
}

}  // namespace

void ProtocolNeed::Add(std::string_view key) {
  if (std::find(keys.begin(), keys.end(), key) != keys.end()) return;
  protocol = std::max(protocol, FindField(key)->since);
  keys.emplace_back(key);
}

ProtocolNeed NeedOf(const JobSpec& spec) {
  static const std::map<std::string_view, NewerField> newer = NewerFields();
  ProtocolNeed need;
  VisitSpec(spec, [&](std::string_view key, const auto& member) {
    const auto found = newer.find(key);
    if (found == newer.end()) return;
    // Every job has a day; it matters where the template prints it.
    if (key == "data.template_date" && !AsksForDay(spec.data.chat_template)) return;
    const int protocol = ProtocolOf(found->second, ValueOf(member));
    if (protocol == 1) return;
    need.protocol = std::max(need.protocol, protocol);
    need.keys.emplace_back(key);
  });
  // The first workers multiplied frozen weights of 16 bits in bf16 whatever the key said.
  constexpr std::string_view kMatmul = "training.matmul";
  if (spec.fp8_frozen() && std::ranges::find(need.keys, kMatmul) == need.keys.end()) {
    need.protocol = std::max(need.protocol, FindField(kMatmul)->newer_since);
    need.keys.emplace_back(kMatmul);
  }
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
