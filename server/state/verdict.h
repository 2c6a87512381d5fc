#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sft::server {

// Why an attempt ended, apart from its state. Numbers are those of sft.v1.Verdict.Domain and
// stored.
struct Verdict {
  enum class Domain : int { kUnset = 0, kNone = 1, kUser = 2, kInfrastructure = 3, kUnknown = 4 };
  Domain domain = Domain::kUnset;
  std::string code;  // "succeeded", "bad_data", "node_restarted"; empty: there is no verdict yet
  std::string message;
  std::string advice;
  int rank = -1;  // that failed first; -1: none is blamed
  std::string node;
  std::vector<std::string> evidence;
  std::string process;    // whose log says more: "prepare", "rank-3"; empty: nobody's
  int retries_left = -1;  // for a failure of this domain; -1: they do not apply
  std::string action;     // what the service did

  bool empty() const { return code.empty(); }
  bool succeeded() const { return domain == Domain::kNone && code == "succeeded"; }
  bool operator==(const Verdict&) const = default;
};

// "none", "user", "infrastructure", "unknown"; "unset" while there is no verdict.
std::string_view ToString(Verdict::Domain domain);

// As stored. An empty text is an empty verdict; text that cannot be read gives one of domain
// unknown that says so, because a job's end must stay visible.
std::string ToJson(const Verdict& verdict);
Verdict VerdictFromJson(std::string_view json);

}  // namespace sft::server
