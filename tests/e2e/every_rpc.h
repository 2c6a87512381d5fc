#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <string>
#include <vector>

// Calls every rpc of the wire contract, for tests that ask who may.

namespace sft::testing_support {

// "/sft.v1.JobService/GetJob" of every service in proto/sft/v1, found by the files of that folder:
// a service that is added is among them.
std::vector<std::string> EveryRpc();

// What one call came to.
struct Outcome {
  std::string method;
  grpc::StatusCode code = grpc::StatusCode::UNKNOWN;
  std::string message;
  std::string answers;  // serialized, one after the other
};
// Each with one request, whose text fields have the value that `fields` has under their name.
std::vector<Outcome> CallEveryRpc(const std::shared_ptr<grpc::Channel>& channel,
                                  const std::map<std::string, std::string>& fields);

}  // namespace sft::testing_support
