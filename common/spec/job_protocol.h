#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/spec/job_spec.h"

// Jobs for workers of an earlier wire protocol. They refuse a job with a key that they do not know
// (common/spec/job_json.h), so the server leaves such keys out; one whose value would be lost by
// that keeps the job off those workers. Field::since is when a key came.

namespace sft::spec {

// What a job asks of the workers that run it.
struct ProtocolNeed {
  int protocol = 1;               // the least that a worker has to speak
  std::vector<std::string> keys;  // for whose sake; none with protocol 1
};
ProtocolNeed NeedOf(const JobSpec& spec);

// ToJson without the keys that came after `protocol`.
nlohmann::json ForProtocol(const JobSpec& spec, int protocol);

}  // namespace sft::spec
