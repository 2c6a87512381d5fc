#include "common/base/json.h"

namespace sft {

namespace {

template <typename Json>
Json Parse(std::string_view text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

template <typename Json>
std::string Dump(const Json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace

nlohmann::json ParseJson(std::string_view text) { return Parse<nlohmann::json>(text); }

nlohmann::ordered_json ParseOrderedJson(std::string_view text) {
  return Parse<nlohmann::ordered_json>(text);
}

std::string DumpJson(const nlohmann::json& value, int indent) { return Dump(value, indent); }

std::string DumpJson(const nlohmann::ordered_json& value, int indent) {
  return Dump(value, indent);
}

}  // namespace sft
