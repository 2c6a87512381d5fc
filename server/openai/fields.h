#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace sft::server::openai {

using Json = nlohmann::ordered_json;

// The body of a request. INVALID_ARGUMENT for what is no JSON object.
absl::StatusOr<Json> ParseBody(const std::string& body);

// Members of a JSON object, each asked for by its name: what nobody has asked for in the end is
// refused, since it would be passed over otherwise. A member that is null counts as left out.
// Errors name the member below `path`. Borrows the object.
class Fields {
 public:
  explicit Fields(const Json& object, std::string path = "")
      : object_(object), path_(std::move(path)) {}

  // Null: it is not there.
  const Json* Find(const char* name);
  // Members that change nothing of the answer.
  void Ignore(std::initializer_list<const char*> names);

  // Absent where it is not there; INVALID_ARGUMENT for another type or a number out of range.
  absl::StatusOr<std::optional<std::string>> Text(const char* name);
  absl::StatusOr<std::optional<bool>> Flag(const char* name);
  absl::StatusOr<std::optional<int64_t>> Integer(const char* name, int64_t least, int64_t most);
  absl::StatusOr<std::optional<double>> Number(const char* name, double least, double most);

  // INVALID_ARGUMENT names a member that nobody has asked for.
  absl::Status RefuseOthers() const;
  // An error in a member.
  absl::Status Error(const std::string& name, const std::string& problem) const;

 private:
  std::string PathOf(const std::string& name) const;

  const Json& object_;
  const std::string path_;
  std::set<std::string, std::less<>> asked_;
};

// The `limit` of a list, from the query. INVALID_ARGUMENT for what is no number from 1 to `most`.
absl::StatusOr<int> ReadLimit(const std::string& text, int most);

// A list of tokens' ids.
absl::StatusOr<std::vector<int32_t>> TokenIds(const Json& list, const std::string& param);

}  // namespace sft::server::openai
