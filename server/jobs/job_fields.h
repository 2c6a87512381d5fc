#pragma once

#include <google/protobuf/repeated_field.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "sft/v1/job.pb.h"

namespace sft::server {

// The fields of a job that who asks for a list wants to have, by their numbers in v1::Job.
class JobFields {
 public:
  // All that lists have.
  JobFields() = default;
  // By their names; without one all. INVALID_ARGUMENT names one that lists do not have, and those
  // that they do.
  static absl::StatusOr<JobFields> Named(
      const google::protobuf::RepeatedPtrField<std::string>& names);

  bool Has(int number) const { return HasAny({number}); }
  bool HasAny(std::initializer_list<int> numbers) const;
  // Takes all others out of a job.
  void Keep(v1::Job& job) const;

 private:
  std::vector<bool> wanted_;  // by number; empty: all
  std::vector<const google::protobuf::FieldDescriptor*> others_;
};

}  // namespace sft::server
