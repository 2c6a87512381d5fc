#include "server/state/verdict.h"

#include <nlohmann/json.hpp>

#include "common/base/json.h"

namespace sft::server {

std::string_view ToString(Verdict::Domain domain) {
  switch (domain) {
    case Verdict::Domain::kUnset:
      return "unset";
    case Verdict::Domain::kNone:
      return "none";
    case Verdict::Domain::kUser:
      return "user";
    case Verdict::Domain::kInfrastructure:
      return "infrastructure";
    case Verdict::Domain::kUnknown:
      return "unknown";
  }
  return "unset";
}

std::string ToJson(const Verdict& verdict) {
  if (verdict.empty()) return "";
  nlohmann::json json = {{"domain", static_cast<int>(verdict.domain)},
                         {"code", verdict.code},
                         {"message", verdict.message},
                         {"advice", verdict.advice},
                         {"rank", verdict.rank},
                         {"node", verdict.node},
                         {"evidence", verdict.evidence},
                         {"process", verdict.process},
                         {"retries_left", verdict.retries_left},
                         {"action", verdict.action}};
  // A rank's last lines may hold any bytes.
  return DumpJson(json);
}

Verdict VerdictFromJson(std::string_view text) {
  if (text.empty()) return {};
  const nlohmann::json json = ParseJson(text);
  const auto string = [&](const char* key) {
    const auto it = json.find(key);
    return it != json.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  Verdict verdict;
  if (json.is_object()) {
    verdict.code = string("code");
    verdict.message = string("message");
    verdict.advice = string("advice");
    verdict.node = string("node");
    verdict.process = string("process");
    verdict.action = string("action");
    const auto domain = json.find("domain"), rank = json.find("rank"),
               lines = json.find("evidence"), left = json.find("retries_left");
    if (left != json.end() && left->is_number_integer()) verdict.retries_left = left->get<int>();
    if (domain != json.end() && domain->is_number_integer()) {
      verdict.domain = static_cast<Verdict::Domain>(domain->get<int>());
    }
    if (rank != json.end() && rank->is_number_integer()) verdict.rank = rank->get<int>();
    if (lines != json.end() && lines->is_array()) {
      for (const auto& line : *lines) {
        if (line.is_string()) verdict.evidence.push_back(line.get<std::string>());
      }
    }
  }
  if (verdict.empty()) {
    verdict.domain = Verdict::Domain::kUnknown;
    verdict.code = "unreadable_verdict";
    verdict.message = "the stored verdict cannot be read: " + std::string(text.substr(0, 200));
  }
  return verdict;
}

}  // namespace sft::server
