// What the boards may hold in the newest Grafana that was there when they were checked.
import type { Dashboard, FieldConfig } from "grafana-13/dist/types/raw/dashboard/x/types.gen";
import type * as stat from "grafana-13/dist/types/raw/composable/stat/panelcfg/x/types.gen";
import type * as states from "grafana-13/dist/types/raw/composable/statetimeline/panelcfg/x/types.gen";
import type * as table from "grafana-13/dist/types/raw/composable/table/panelcfg/x/types.gen";
import type * as timeseries from "grafana-13/dist/types/raw/composable/timeseries/panelcfg/x/types.gen";

export interface Model {
  board: Dashboard;
  field: FieldConfig;
  options: {
    stat: stat.Options;
    "state-timeline": states.Options;
    table: table.Options;
    timeseries: timeseries.Options;
  };
  custom: {
    "state-timeline": states.FieldConfig;
    table: table.FieldConfig;
    timeseries: timeseries.FieldConfig;
  };
}
