#include "server/openai/fields.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "common/base/json.h"
#include "server/openai/errors.h"

namespace sft::server::openai {

namespace {

// Values that a document has several times its own size for, and elements of lists, tokens above
// all, in a body.
constexpr size_t kMostValues = 100'000, kMostElements = 1'000'000;

// Refuses what a tree would take much memory for, before there is one.
absl::Status CheckSize(std::string_view body) {
  size_t values = 0, elements = 0;
  bool in_text = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_text) {
      if (c == '\\') ++i;
      in_text = c != '"';
      continue;
    }
    in_text = c == '"';
    values += c == '"' || c == '[' || c == '{';
    elements += c == ',';
  }
  if (values <= kMostValues && elements <= kMostElements) return absl::OkStatus();
  return InvalidArgument(
      fmt::format("the body has {} texts, lists and objects and {} elements: at most {} and {} are "
                  "taken",
                  values, elements, kMostValues, kMostElements));
}

}  // namespace

absl::StatusOr<Json> ParseBody(const std::string& body) {
  SFT_RETURN_IF_ERROR(CheckSize(body));
  JsonProblem problem;
  Json json = ParseOrderedJson(body, {.keys_once = true}, &problem);
  if (json.is_discarded()) return InvalidArgument("the body is not JSON: " + problem.text);
  if (json.is_object()) return json;
  return InvalidArgument(fmt::format("the body is a JSON {}, not an object", json.type_name()));
}

std::string Fields::PathOf(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

absl::Status Fields::Error(const std::string& name, const std::string& problem) const {
  return ParamError(PathOf(name), fmt::format("{} {}", PathOf(name), problem));
}

const Json* Fields::Find(const char* name) {
  asked_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void Fields::Ignore(std::initializer_list<const char*> names) {
  for (const char* name : names) asked_.insert(name);
}

absl::StatusOr<std::optional<std::string>> Fields::Text(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return Error(name, "is no text");
  return value->get<std::string>();
}

absl::StatusOr<std::optional<bool>> Fields::Flag(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return Error(name, "is neither true nor false");
  return value->get<bool>();
}

absl::StatusOr<std::optional<int64_t>> Fields::Integer(const char* name, int64_t least,
                                                       int64_t most) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  // get() would silently cut a number that is too large for int64_t.
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits || value->get<int64_t>() < least || value->get<int64_t>() > most) {
    return Error(name, fmt::format("is {}, must be a whole number between {} and {}",
                                   DumpJson(*value).substr(0, 60), least, most));
  }
  return value->get<int64_t>();
}

absl::StatusOr<std::optional<double>> Fields::Number(const char* name, double least, double most) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= least && number <= most)) {
    return Error(name, fmt::format("is {}, must be a number between {} and {}",
                                   DumpJson(*value).substr(0, 60), least, most));
  }
  return number;
}

absl::Status Fields::RefuseOthers() const {
  for (const auto& item : object_.items()) {
    if (item.value().is_null() || asked_.contains(item.key())) continue;
    return Error(item.key(), "is not served here: leave it out");
  }
  return absl::OkStatus();
}

absl::StatusOr<int> ReadLimit(const std::string& text, int most) {
  int limit = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, limit);
  if (error == std::errc() && stop == end && limit >= 1 && limit <= most) return limit;
  return ParamError("limit", fmt::format("limit must be a whole number from 1 to {}", most));
}

absl::StatusOr<std::vector<int32_t>> TokenIds(const Json& list, const std::string& param) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& each : list) {
    const int64_t id = each.is_number_integer() ? each.get<int64_t>() : -1;
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
      return ParamError(param, fmt::format("{} holds {}, which is no token", param,
                                           DumpJson(each).substr(0, 60)));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace sft::server::openai
