#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/job_spec.h"

// Adapts jobs to workers of an earlier wire protocol. Those refuse a job with a key they do not
// know (common/spec/job_json.h), so the server leaves such keys out; a key whose value would be
// lost by that keeps the job off those workers. Field::since says when a key was added.

namespace sft::spec {

// The protocol a job needs of its workers.
struct ProtocolNeed {
  int protocol = 1;               // the lowest that a worker must speak
  std::vector<std::string> keys;  // the keys that need it; empty with protocol 1

  // Adds a key that matters whatever its value is.
  void Add(std::string_view key);
};
ProtocolNeed NeedOf(const JobSpec& spec);

// ToJson without the keys added after `protocol`.
nlohmann::json ForProtocol(const JobSpec& spec, int protocol);

}  // namespace sft::spec
