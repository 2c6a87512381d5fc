#include "common/base/json.h"

#include <fmt/format.h>

#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/utf8.h"

namespace sft {

namespace {

constexpr size_t kMaxProblemBytes = 300;

std::string Short(std::string_view text) {
  return ToUtf8(text.substr(0, kMaxProblemBytes)) + (text.size() > kMaxProblemBytes ? "..." : "");
}

// Builds the document while it is parsed. The library's own builder would search the keys of an
// ordered object one by one for each new key.
template <typename Json>
class Builder : public nlohmann::json_sax<Json> {
 public:
  using Base = nlohmann::json_sax<Json>;

  Builder(JsonForm form, JsonProblem* problem) : form_(form), problem_(problem) {}
  Json Take() { return std::move(root_); }

  bool null() override { return Put(Json(nullptr)); }
  bool boolean(bool value) override { return Put(Json(value)); }
  bool number_integer(typename Base::number_integer_t value) override { return Put(Json(value)); }
  bool number_unsigned(typename Base::number_unsigned_t value) override { return Put(Json(value)); }
  bool number_float(typename Base::number_float_t value, const std::string&) override {
    return Put(Json(value));
  }
  bool string(std::string& value) override { return Put(Json(std::move(value))); }
  bool binary(typename Base::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override;
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 9: ..."
    const std::string_view what = error.what();
    const size_t end = what.find("] ");
    return Refuse(JsonProblem::kSyntax, Short(end == what.npos ? what : what.substr(end + 2)));
  }

 private:
  using Object = typename Json::object_t;
  static constexpr bool kOrdered = std::is_same_v<Json, nlohmann::ordered_json>;
  // From this many keys on, an index is faster than a linear search.
  static constexpr size_t kIndexed = 32;

  struct Level {
    Json* container;
    Json* slot = nullptr;                            // value of the key that was read last
    std::unordered_map<std::string, size_t> places;  // index of the keys of a large ordered object
  };

  Json* PutAt(Json value);
  bool Put(Json value) {
    PutAt(std::move(value));
    return true;
  }
  bool Open(Json value) {
    if (open_.size() >= kMaxJsonDepth) {
      return Refuse(JsonProblem::kDepth,
                    fmt::format("nested more than {} levels deep", kMaxJsonDepth));
    }
    open_.push_back({PutAt(std::move(value))});
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  bool Refuse(JsonProblem::Kind kind, std::string text) {
    if (problem_ != nullptr) *problem_ = {kind, std::move(text)};
    return false;
  }
  // The place for the value of a key, and whether the key is new.
  static std::pair<Json*, bool> Place(Level& level, Object& object, const std::string& name);

  const JsonForm form_;
  JsonProblem* const problem_;
  Json root_;
  std::vector<Level> open_;
};

template <typename Json>
Json* Builder<Json>::PutAt(Json value) {
  if (open_.empty()) {
    root_ = std::move(value);
    return &root_;
  }
  Level& level = open_.back();
  if (!level.container->is_array()) return &(*level.slot = std::move(value));
  level.container->push_back(std::move(value));
  return &level.container->back();
}

template <typename Json>
std::pair<Json*, bool> Builder<Json>::Place(Level& level, Object& object, const std::string& name) {
  if constexpr (!kOrdered) {
    const auto [at, is_new] = object.emplace(name, nullptr);
    return {&at->second, is_new};
  } else if (object.size() < kIndexed) {
    const auto [at, is_new] = object.emplace(name, nullptr);
    return {&at->second, is_new};
  } else {
    if (level.places.empty()) {
      for (size_t i = 0; i < object.size(); ++i)
        level.places.emplace((object.begin() + i)->first, i);
    }
    const auto [place, is_new] = level.places.emplace(name, object.size());
    if (is_new) object.emplace_back(name, nullptr);
    return {&(object.begin() + place->second)->second, is_new};
  }
}

template <typename Json>
bool Builder<Json>::key(std::string& name) {
  Level& level = open_.back();
  const auto [slot, is_new] = Place(level, level.container->template get_ref<Object&>(), name);
  level.slot = slot;
  if (is_new || !form_.keys_once) return true;
  return Refuse(JsonProblem::kTwice, fmt::format("\"{}\" stands there twice", Short(name)));
}

template <typename Json>
Json Parse(std::string_view text, JsonForm form, JsonProblem* problem) {
  Builder<Json> builder(form, problem);
  const bool taken = Json::sax_parse(text.begin(), text.end(), &builder, Json::input_format_t::json,
                                     /*strict=*/true, form.comments);
  return taken ? builder.Take() : Json(Json::value_t::discarded);
}

template <typename Json>
std::string Dump(const Json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace

nlohmann::json ParseJson(std::string_view text, JsonForm form, JsonProblem* problem) {
  return Parse<nlohmann::json>(text, form, problem);
}

nlohmann::ordered_json ParseOrderedJson(std::string_view text, JsonForm form,
                                        JsonProblem* problem) {
  return Parse<nlohmann::ordered_json>(text, form, problem);
}

std::string DumpJson(const nlohmann::json& value, int indent) { return Dump(value, indent); }

std::string DumpJson(const nlohmann::ordered_json& value, int indent) {
  return Dump(value, indent);
}

}  // namespace sft
