#pragma once

#include <compare>
#include <string>
#include <string_view>

namespace sft {

// A string id that cannot be mixed with another kind of id. Tag is any type used as the kind's
// name.
template <typename Tag>
class StrongId {
 public:
  StrongId() = default;
  explicit StrongId(std::string value) : value_(std::move(value)) {}
  const std::string& value() const { return value_; }
  bool empty() const { return value_.empty(); }
  auto operator<=>(const StrongId&) const = default;

 private:
  std::string value_;
};

using JobId = StrongId<struct JobTag>;
using NodeId = StrongId<struct NodeTag>;
using AttemptUid = StrongId<struct AttemptTag>;

// `prefix` + "-" + `length` random characters of [a-z0-9] without look-alikes, from the kernel's
// random source; 10 characters are 2^49 possibilities.
std::string RandomId(std::string_view prefix, int length = 10);

// A random UUID (version 4) for request ids and incarnations.
std::string RandomUuid();

}  // namespace sft
