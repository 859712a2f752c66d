/*
 * Plans every scan of this source by itself, with the columns that the query uses. An aggregate that needs
 * only the number of records and their first and last offsets and times scans totals of the log (view=totals)
 * in place of records.
 *
 * Works around Spark 4.2 and 4.3: since SPARK-51575 the worker that takes pushed filters also plans the read,
 * and the result is kept with the table (PythonDataSourceV2.setReadInfo), not with the scan. A DataFrame that
 * is read twice, in one query or in two, then reads what the last filter left: too few rows, without an error.
 * Spark also does not tell Python sources which columns a query uses, nor which scans belong to one query: the
 * reader finds an id of the query in the metadata of its schema's first field, the same for all scans of it.
 *
 * The rule can go when PythonDataSourceV2 has no method setReadInfo any more (optimizer_rule.py then does not
 * install it) and tests/spark/test_source_filters.py and test_source_columns.py pass without it. Janino compiles
 * this file in the driver's JVM, so it uses no generics and no lambdas.
 */
package stratalog;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Coalesce;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.Count;
import org.apache.spark.sql.catalyst.expressions.aggregate.Max;
import org.apache.spark.sql.catalyst.expressions.aggregate.Min;
import org.apache.spark.sql.catalyst.expressions.aggregate.Sum;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.UnaryNode;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Function1;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractPartialFunction;

public class OwnPlans extends Rule {
  private static final Set PLACES = new HashSet(Arrays.asList(new Object[] {"topic", "partition"}));
  private static final Set TABLES = new HashSet(Arrays.asList(new Object[] {
      "CreateTable", "CreateTableAsSelect", "ReplaceTable", "ReplaceTableAsSelect"}));
  private static final Set NEVER_NULL = new HashSet(
      Arrays.asList(new Object[] {"topic", "partition", "offset", "timestamp", "timestampType"}));

  private final Set made = Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap()));
  private final Map queries = Collections.synchronizedMap(new WeakHashMap());

  public TreeNode apply(TreeNode plan) {
    refuse(plan);
    return plan.transform(new Own(this));
  }

  /**
   * A table in the catalog: Spark does not hand its options to Python sources when it reads it, so that rows
   * would be written and nobody could read them.
   */
  private static void refuse(TreeNode plan) {
    if (!TABLES.contains(plan.nodeName())) return;
    Option provider;
    try {
      Object spec = plan.getClass().getMethod("tableSpec", new Class[0]).invoke(plan, new Object[0]);
      provider = (Option) spec.getClass().getMethod("provider", new Class[0]).invoke(spec, new Object[0]);
    } catch (Exception error) {
      return; // another Spark has another plan: the source refuses what it can
    }
    if (provider.isEmpty() || !"stratalog".equalsIgnoreCase((String) provider.get())) return;
    throw new IllegalArgumentException(
        "stratalog: a table in the catalog (CREATE TABLE, saveAsTable, writeTo, toTable) is not supported;"
        + " write with save() or start(), and read with CREATE TEMPORARY VIEW \u2026 USING stratalog"
        + " OPTIONS (path '\u2026', subscribe '\u2026')");
  }

  public boolean shared(Object node) throws Exception {
    if (!(node instanceof DataSourceV2ScanRelation)) return false;
    Scan scan = ((DataSourceV2ScanRelation) node).scan();
    return scan instanceof PythonScan && !made.contains(scan)
        && "stratalog".equalsIgnoreCase((String) get(scan, "shortName"));
  }

  /** The scan below a projection, perhaps with a filter between them; null when there is none to plan. */
  public DataSourceV2ScanRelation below(Object node) throws Exception {
    if (!(node instanceof Project)) return null;
    LogicalPlan child = ((Project) node).child();
    if (child.nodeName().equals("Filter")) child = (LogicalPlan) ((UnaryNode) child).child();
    return shared(child) ? (DataSourceV2ScanRelation) child : null;
  }

  /** A projection whose scan delivers the columns it needs and no more. */
  public Object narrowed(Project node) throws Exception {
    DataSourceV2ScanRelation scan = below(node);
    AttributeSet needed = node.references();
    if (node.child() != scan) needed = needed.$plus$plus(node.child().references());
    Set pushed = pushed(scan);
    Object[] output = array(scan.output());
    List kept = new ArrayList();
    for (int at = 0; at < output.length; at++) {
      NamedExpression column = (NamedExpression) output[at];
      if (needed.contains(column) || pushed.contains(column.name())) kept.add(column);
    }
    if (kept.isEmpty()) kept.add(cheapest(output));
    Object planned = own(scan, kept, null);
    return node.transform(new Instead(scan, planned));
  }

  /** The scan below an aggregate that totals of the log can answer; null when there is none. */
  public DataSourceV2ScanRelation totalled(Object node) throws Exception {
    if (!(node instanceof Aggregate)) return null;
    LogicalPlan child = ((Aggregate) node).child();
    if (child instanceof Project) {
      Object[] columns = array(((Project) child).projectList());
      for (int at = 0; at < columns.length; at++) if (!(columns[at] instanceof Attribute)) return null;
      child = ((Project) child).child();
    }
    if (!shared(child)) return null;
    DataSourceV2ScanRelation scan = (DataSourceV2ScanRelation) child;
    String view = ((CaseInsensitiveStringMap) get(scan.scan(), "options")).get("view");
    if (view != null && !view.equalsIgnoreCase("records")) return null;
    Object[] keys = array(((Aggregate) node).groupingExpressions());
    for (int at = 0; at < keys.length; at++) if (!PLACES.contains(column(scan, keys[at]))) return null;
    Object[] results = array(((Aggregate) node).aggregateExpressions());
    for (int at = 0; at < results.length; at++) if (!known(scan, (Expression) results[at])) return null;
    return scan;
  }

  /** Whether totals tell a result. */
  private static boolean known(DataSourceV2ScanRelation scan, Expression result) {
    if (result instanceof AggregateExpression) return total(scan, (AggregateExpression) result) != null;
    if (result instanceof Attribute) return PLACES.contains(column(scan, result));
    Object[] parts = array(result.children());
    for (int at = 0; at < parts.length; at++) if (!known(scan, (Expression) parts[at])) return false;
    return true;
  }

  /** The column of the totals that a function is computed from; null when there is none. */
  public static String total(DataSourceV2ScanRelation scan, AggregateExpression result) {
    Expression function = result.aggregateFunction();
    if (result.isDistinct() || result.filter().isDefined()) return null;
    Object[] of = array(function.children());
    if (function instanceof Count) {
      for (int at = 0; at < of.length; at++) {
        boolean literal = of[at] instanceof Literal && ((Literal) of[at]).value() != null;
        if (!literal && !NEVER_NULL.contains(column(scan, of[at]))) return null;
      }
      return "records";
    }
    if (!(function instanceof Min || function instanceof Max)) return null;
    String name = column(scan, of[0]);
    String least = function instanceof Min ? "min" : "max";
    if (name.equals("offset")) return least + "Offset";
    if (name.equals("timestamp")) return least + "Timestamp";
    return PLACES.contains(name) ? name : null;
  }

  /** The name of a column of the scan; "" for anything else. */
  private static String column(DataSourceV2ScanRelation scan, Object expression) {
    Object[] output = array(scan.output());
    for (int at = 0; at < output.length; at++) {
      Attribute column = (Attribute) output[at];
      if (expression instanceof Attribute && column.exprId().equals(((Attribute) expression).exprId())) {
        return column.name();
      }
    }
    return "";
  }

  /** The same aggregate over totals. */
  public Object summed(Aggregate node) throws Exception {
    DataSourceV2ScanRelation scan = totalled(node);
    Totals totals = new Totals(scan);
    LogicalPlan rewritten = (LogicalPlan) node.transformExpressionsUp(totals);
    if (totals.made.isEmpty()) totals.column("records", DataTypes.LongType);
    Object[] output = array(scan.output());
    Set pushed = pushed(scan);
    List kept = new ArrayList(totals.made.values());
    for (int at = 0; at < output.length; at++) {
      NamedExpression column = (NamedExpression) output[at];
      boolean place = PLACES.contains(column.name()) && node.references().contains(column);
      if (place || pushed.contains(column.name())) kept.add(column);
    }
    return rewritten.transform(new Instead(node.child(), own(scan, kept, "totals")));
  }

  /** The columns that pushed filters name: Spark serializes filters with the schema of the scan. */
  private static Set pushed(DataSourceV2ScanRelation scan) throws Exception {
    Set names = new HashSet();
    Filter[] filters = (Filter[]) get(scan.scan(), "supportedFilters");
    for (int at = 0; at < filters.length; at++) names.addAll(Arrays.asList(filters[at].references()));
    return names;
  }

  private static Object cheapest(Object[] output) {
    for (int at = 0; at < output.length; at++) {
      if (((NamedExpression) output[at]).name().equals("partition")) return output[at];
    }
    return output[0];
  }

  private static Object[] array(Seq of) {
    Object[] all = new Object[of.size()];
    for (int at = 0; at < all.length; at++) all[at] = of.apply(at);
    return all;
  }

  /** The same scan by itself, of some columns (null: all), of another view (null: the same one). */
  public Object own(DataSourceV2ScanRelation node, List kept, String view) throws Exception {
    Scan old = node.scan();
    PythonDataSourceV2 source = (PythonDataSourceV2) get(old, "ds");
    String name = (String) get(old, "shortName");
    StructType schema = (StructType) get(old, "outputSchema");
    CaseInsensitiveStringMap options = (CaseInsensitiveStringMap) get(old, "options");
    Filter[] filters = (Filter[]) get(old, "supportedFilters");
    PythonDataSourceV2 alone = new PythonDataSourceV2();
    alone.setShortName(name);
    if (view != null) {
      Map changed = new HashMap(options);
      changed.put("view", view);
      options = new CaseInsensitiveStringMap(changed);
    }
    boolean whole = view == null && (kept == null || kept.size() == schema.size());
    if (whole) {
      Object created = source.getOrCreateDataSourceInPython(name, options, new Some(schema));
      Field field = PythonDataSourceV2.class.getDeclaredField("dataSourceInPython");
      field.setAccessible(true);
      field.set(alone, created);
    } else {
      StructField[] fields = new StructField[kept.size()];
      for (int at = 0; at < fields.length; at++) {
        Attribute column = (Attribute) kept.get(at);
        fields[at] = new StructField(column.name(), column.dataType(), true, Metadata.empty());
      }
      schema = new StructType(fields);
      alone.getOrCreateDataSourceInPython(name, options, new Some(schema));
    }
    PythonScanBuilder builder = new PythonScanBuilder(alone, name, marked(schema), options);
    if (filters.length > 0 && builder.pushFilters(filters).length > 0) {
      throw new IllegalStateException("stratalog: a filter was taken and then given back");
    }
    Scan scan = builder.build();
    made.add(scan);
    Object[] parts = new Object[node.productArity()];
    for (int at = 0; at < parts.length; at++) {
      Object part = node.productElement(at);
      parts[at] = part == old ? scan : part == node.output() && !whole ? narrow(kept) : part;
    }
    Method[] methods = node.getClass().getMethods();
    for (int at = 0; at < methods.length; at++) {
      if (methods[at].getName().equals("copy") && methods[at].getParameterTypes().length == parts.length) {
        return methods[at].invoke(node, parts);
      }
    }
    throw new IllegalStateException("stratalog: this Spark copies a scan in another way");
  }

  /** The schema with the id of the query that is being optimized; its subqueries have the same. */
  private StructType marked(StructType schema) {
    Option tracker = QueryPlanningTracker.get();
    if (tracker.isEmpty() || schema.isEmpty()) return schema;
    String query;
    synchronized (queries) {
      query = (String) queries.get(tracker.get());
      if (query == null) {
        query = UUID.randomUUID().toString();
        queries.put(tracker.get(), query);
      }
    }
    StructField[] fields = (StructField[]) schema.fields().clone();
    StructField first = fields[0];
    MetadataBuilder metadata = new MetadataBuilder().withMetadata(first.metadata());
    fields[0] = new StructField(first.name(), first.dataType(), first.nullable(),
        metadata.putString("stratalog.query", query).build());
    return new StructType(fields);
  }

  private static Seq narrow(List kept) {
    return scala.jdk.javaapi.CollectionConverters.asScala(kept).toSeq();
  }

  private static Object get(Object of, String name) throws Exception {
    Field field = of.getClass().getDeclaredField(name);
    field.setAccessible(true);
    return field.get(of);
  }

  public void install(org.apache.spark.sql.classic.SparkSession session) {
    session.experimental().extraOptimizations_$eq(
        (Seq) session.experimental().extraOptimizations().appended(this));
  }

  public static class Own extends AbstractPartialFunction {
    private final OwnPlans rule;

    public Own(OwnPlans rule) {
      this.rule = rule;
    }

    public boolean isDefinedAt(Object node) {
      try {
        return rule.totalled(node) != null || rule.below(node) != null || rule.shared(node);
      } catch (Exception error) {
        throw new IllegalStateException(error);
      }
    }

    public Object applyOrElse(Object node, Function1 otherwise) {
      if (!isDefinedAt(node)) return otherwise.apply(node);
      try {
        if (node instanceof Aggregate) return rule.summed((Aggregate) node);
        if (node instanceof Project) return rule.narrowed((Project) node);
        return rule.own((DataSourceV2ScanRelation) node, null, null);
      } catch (RuntimeException error) {
        throw error;
      } catch (Exception error) {
        throw new IllegalStateException(error);
      }
    }
  }

  /** Replaces functions of records by functions of totals. */
  public static class Totals extends AbstractPartialFunction {
    public final Map made = new LinkedHashMap();
    private final DataSourceV2ScanRelation scan;

    public Totals(DataSourceV2ScanRelation scan) {
      this.scan = scan;
    }

    public Attribute column(String name, DataType kind) {
      if (!made.containsKey(name)) {
        made.put(name, DataTypeUtils.toAttribute(new StructField(name, kind, true, Metadata.empty())));
      }
      return (Attribute) made.get(name);
    }

    public boolean isDefinedAt(Object node) {
      return node instanceof AggregateExpression && !PLACES.contains(total(scan, (AggregateExpression) node));
    }

    public Object applyOrElse(Object node, Function1 otherwise) {
      if (!isDefinedAt(node)) return otherwise.apply(node);
      AggregateFunction function = ((AggregateExpression) node).aggregateFunction();
      Attribute column = column(total(scan, (AggregateExpression) node), function.dataType());
      if (function instanceof Min) return new Min(column).toAggregateExpression();
      if (function instanceof Max) return new Max(column).toAggregateExpression();
      List parts = new ArrayList();
      parts.add(new Sum(column).toAggregateExpression());
      parts.add(new Literal(Long.valueOf(0), DataTypes.LongType));
      return new Coalesce(narrow(parts));
    }
  }

  public static class Instead extends AbstractPartialFunction {
    private final Object old;
    private final Object made;

    public Instead(Object old, Object made) {
      this.old = old;
      this.made = made;
    }

    public boolean isDefinedAt(Object node) {
      return node == old;
    }

    public Object applyOrElse(Object node, Function1 otherwise) {
      return node == old ? made : otherwise.apply(node);
    }
  }
}
