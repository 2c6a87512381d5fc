#pragma once

#include "common/base/status.h"
#include "common/spec/job_spec.h"
#include "server/blob/blob_store.h"
#include "server/state/records.h"
#include "server/store/store.h"

namespace sft::server {

// The data set with the verdict of this server's check. That of an earlier server may be another:
// then the file is read again, and the verdict kept. INVALID_ARGUMENT when no job can read the
// file.
absl::StatusOr<DatasetRecord> WithVerdict(Store& store, BlobStore& blobs, DatasetRecord dataset);

// What a job makes of a data set's rows.
struct RowsFound {
  std::string problem;  // why the job cannot use them; empty if it can
  // Samples that a row is on average: KTO makes two of a pair.
  double samples_of_row = 1;
};

// What stands in the first `taken` rows at most (0: in all). Rows of preferences are looked at
// again: the verdict is about texts.
absl::StatusOr<RowsFound> FindRows(BlobStore& blobs, const DatasetRecord& dataset,
                                   const spec::JobSpec& spec, int64_t taken);

}  // namespace sft::server
