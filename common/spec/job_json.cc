#include "common/spec/job_json.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <type_traits>

#include "common/base/status.h"
#include "common/spec/fields.h"
#include "common/spec/visit.h"

namespace sft::spec {
namespace {

using Json = nlohmann::json;

Json* Descend(Json* root, std::string_view key) {
  for (std::string_view part : SplitWords(key, '.')) root = &(*root)[std::string(part)];
  return root;
}

const Json* Find(const Json& root, std::string_view key) {
  const Json* node = &root;
  while (true) {
    const size_t dot = key.find('.');
    if (!node->is_object()) return nullptr;
    const auto found = node->find(key.substr(0, dot));
    if (found == node->end()) return nullptr;
    node = &*found;
    if (dot == key.npos) return node;
    key.remove_prefix(dot + 1);
  }
}

// Values that are no tables.
size_t CountValues(const Json& node) {
  size_t values = 0;
  for (const Json& child : node) {
    values += child.is_object() && !child.empty() ? CountValues(child) : 1;
  }
  return values;
}

// False when the JSON value is not of the member's type.
template <typename T>
bool Read(const Json& json, T* member) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) return false;
    *member = json.get<bool>();
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    if (!json.is_number_unsigned()) return false;
    *member = json.get<uint64_t>();
  } else if constexpr (std::is_integral_v<T>) {
    if (!json.is_number_integer()) return false;
    const int64_t number = json.get<int64_t>();
    if (number < std::numeric_limits<T>::min() || number > std::numeric_limits<T>::max())
      return false;
    *member = static_cast<T>(number);
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!json.is_number()) return false;
    *member = json.get<double>();
  } else if constexpr (std::is_enum_v<T>) {
    return json.is_string() && ParseEnum(json.get<std::string>(), member);
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!json.is_string()) return false;
    *member = json.get<std::string>();
  } else {
    if (!json.is_array()) return false;
    member->clear();
    for (const Json& item : json) {
      if (!item.is_string()) return false;
      member->push_back(item.get<std::string>());
    }
  }
  return true;
}

// The first key below `node` that no member has; empty when there is none. Slow.
std::string FirstUnknown(const Json& node, const std::string& prefix,
                         const std::set<std::string, std::less<>>& known) {
  for (const auto& [name, child] : node.items()) {
    const std::string key = prefix.empty() ? name : prefix + "." + name;
    if (known.contains(key)) continue;
    const bool table = child.is_object() && !child.empty();
    const std::string inner = table ? FirstUnknown(child, key, known) : key;
    if (!inner.empty()) return inner;
  }
  return "";
}

}  // namespace

Json ToJson(const JobSpec& spec) {
  Json json = Json::object();
  VisitSpec(spec, [&](std::string_view key, const auto& member) {
    using T = std::remove_cvref_t<decltype(member)>;
    if constexpr (std::is_enum_v<T>) {
      *Descend(&json, key) = std::string(EnumName(member));
    } else {
      *Descend(&json, key) = member;
    }
  });
  return json;
}

absl::StatusOr<JobSpec> FromJson(const Json& json) {
  if (!json.is_object()) return InvalidArgument("a job must be a JSON object");
  JobSpec spec;
  size_t known_values = 0;
  std::string wrong;
  VisitSpec(spec, [&](std::string_view key, auto& member) {
    const Json* node = Find(json, key);
    if (node == nullptr) return;
    ++known_values;
    if (!Read(*node, &member) && wrong.empty()) wrong = std::string(key);
  });
  if (!wrong.empty()) {
    return InvalidArgument(
        fmt::format("job: {} has a wrong type or value: {}", wrong, Find(json, wrong)->dump()));
  }
  // The server reads a job often, and nearly never one with a key that it does not know.
  if (CountValues(json) == known_values) return spec;
  std::set<std::string, std::less<>> known;
  VisitSpec(spec, [&](std::string_view key, auto&) { known.emplace(key); });
  if (const std::string unknown = FirstUnknown(json, "", known); !unknown.empty()) {
    return InvalidArgument(fmt::format(
        "job: unknown key {}: it was written by a newer version; upgrade this program", unknown));
  }
  return spec;
}

}  // namespace sft::spec
