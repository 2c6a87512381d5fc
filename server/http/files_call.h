#pragma once

#include <string>

#include "server/http/form_data.h"
#include "server/http/openai_door.h"
#include "sft/v1/data_service.pb.h"
#include "sft/v1/file_service.pb.h"

namespace sft::server {

// One request below /v1/files: uploads that go to the disk as they come, and what was uploaded. Of
// the one thread that serves it.
class FilesCall {
 public:
  // The most of one upload, its form included.
  static constexpr uint64_t kMostBytes = uint64_t{8} << 30;

  // Borrowed.
  explicit FilesCall(OpenAiDoor& door) : door_(door) {}
  // `path` is what follows "/v1/files". A status that is not OK is to be the answer, or the end of
  // one that has begun.
  absl::Status Serve(const std::string& path);

 private:
  // What an upload's form has brought.
  struct Form {
    std::string purpose, file_name, sha256;
    bool has_file = false;
  };
  absl::Status Create();
  absl::Status TakeForm(FormData& form, Form& taken);
  // Reads what is left of a body that was taken, or refused with `read`.
  absl::Status Drain(const absl::Status& read);
  absl::Status TakePart(FormData& form, const FormData::Part& part, Form& taken);
  absl::Status Upload(FormData& form, Form& taken);
  absl::Status List();
  // Files of curves, of jobs that have succeeded.
  absl::Status ListResults(const std::string& after, int limit);
  absl::Status Get(const std::string& id);
  absl::Status Delete(const std::string& id);
  absl::Status Content(const std::string& id);

  absl::StatusOr<v1::File> Find(const std::string& id);
  // A job's curve as a file.
  absl::StatusOr<std::string> CsvOf(const std::string& job_id);

  OpenAiDoor& door_;
};

}  // namespace sft::server
