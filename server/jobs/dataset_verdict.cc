#include "server/jobs/dataset_verdict.h"

#include "common/data/dataset_check.h"
#include "common/spec/visit.h"
#include "server/store/files.h"

namespace sft::server {

absl::StatusOr<DatasetRecord> WithVerdict(Store& store, BlobStore& blobs, DatasetRecord dataset) {
  if (dataset.check_version >= data::kCheckVersion) return dataset;
  SFT_ASSIGN_OR_RETURN(const std::string path, blobs.PathOf(dataset.sha256));
  SFT_ASSIGN_OR_RETURN(const data::DatasetCheck found,
                       data::CheckUpload(path, dataset.display_name));
  dataset.rows = found.rows;
  dataset.odd_rows = found.odd_rows;
  dataset.first_odd_row = found.first_odd_row;
  dataset.first_odd = found.first_odd;
  dataset.protocol = data::ProtocolOf(found);
  dataset.check_version = data::kCheckVersion;
  SFT_RETURN_IF_ERROR(store.Write([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const auto kept, store::FindDataset(db, dataset.sha256));
    if (!kept.has_value()) return absl::OkStatus();  // removed meanwhile
    return store::PutDataset(db, dataset);
  }));
  return dataset;
}

absl::StatusOr<RowsFound> FindRows(BlobStore& blobs, const DatasetRecord& dataset,
                                   const spec::JobSpec& spec, int64_t taken) {
  // The upload was looked at under the columns' own names.
  if (!spec.data.columns.empty()) return RowsFound{};
  data::DatasetCheck found{dataset.rows, dataset.odd_rows, dataset.first_odd_row,
                           dataset.first_odd};
  const data::Learns learns = data::LearnsOf(spec::EnumName(spec.training.loss), spec.job.kind);
  if (data::Compares(learns) || (learns == data::Learns::kChosen && dataset.odd_rows > 0)) {
    SFT_ASSIGN_OR_RETURN(const std::string path, blobs.PathOf(dataset.sha256));
    SFT_ASSIGN_OR_RETURN(found, data::CheckUpload(path, dataset.display_name, learns));
  }
  RowsFound result{data::RowsProblem(found, spec.data.on_bad_rows == spec::BadRows::kSkip, taken)};
  if (learns == data::Learns::kMarked && found.rows > 0) {
    const int64_t pairs = found.forms[static_cast<size_t>(data::Form::kPreference)];
    result.samples_of_row += static_cast<double>(pairs) / static_cast<double>(found.rows);
  }
  return result;
}

}  // namespace sft::server
