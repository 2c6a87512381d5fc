#include "server/jobs/job_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/utf8.h"

namespace sft::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using v1::Job;

constexpr size_t kMostTold = 80;

// Fields that only GetJob returns: they are large, or come from other rows.
bool IsOfOneJob(int number) {
  constexpr int kOfOneJob[] = {Job::kSourceTextFieldNumber,    Job::kResolvedJsonFieldNumber,
                               Job::kResolvedFieldNumber,      Job::kAttemptsFieldNumber,
                               Job::kResumedFromFieldNumber,   Job::kResumedStepFieldNumber,
                               Job::kCheckpointStepFieldNumber};
  return std::ranges::find(kOfOneJob, number) != std::end(kOfOneJob);
}

absl::Status NoField(const std::string& name, bool exists) {
  std::vector<std::string> known;
  const Descriptor& job = *Job::descriptor();
  for (int i = 0; i < job.field_count(); ++i) {
    if (!IsOfOneJob(job.field(i)->number())) known.push_back(job.field(i)->name());
  }
  return InvalidArgument(fmt::format("fields: {}; there are {}",
                                     exists ? fmt::format("\"{}\" is in GetJob alone", name)
                                            : fmt::format("a job in a list has no \"{}\"",
                                                          WithoutHidden(name.substr(0, kMostTold))),
                                     fmt::join(known, ", ")));
}

}  // namespace

absl::StatusOr<JobFields> JobFields::Named(
    const google::protobuf::RepeatedPtrField<std::string>& names) {
  JobFields fields;
  if (names.empty()) return fields;
  const Descriptor& job = *Job::descriptor();
  for (int i = 0; i < job.field_count(); ++i) {
    const auto number = static_cast<size_t>(job.field(i)->number());
    fields.wanted_.resize(std::max(fields.wanted_.size(), number + 1));
  }
  fields.wanted_[Job::kNameFieldNumber] = true;
  for (const std::string& name : names) {
    const FieldDescriptor* const field = job.FindFieldByName(name);
    if (field == nullptr || IsOfOneJob(field->number())) return NoField(name, field != nullptr);
    fields.wanted_[static_cast<size_t>(field->number())] = true;
  }
  for (int i = 0; i < job.field_count(); ++i) {
    if (!fields.Has(job.field(i)->number())) fields.others_.push_back(job.field(i));
  }
  return fields;
}

bool JobFields::HasAny(std::initializer_list<int> numbers) const {
  return wanted_.empty() || std::ranges::any_of(numbers, [&](int number) {
           return wanted_[static_cast<size_t>(number)];
         });
}

void JobFields::Keep(v1::Job& job) const {
  for (const FieldDescriptor* const field : others_) job.GetReflection()->ClearField(&job, field);
}

}  // namespace sft::server
