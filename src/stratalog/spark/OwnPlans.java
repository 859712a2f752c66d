/*
 * Plans every scan of this source by itself, with the columns that the query uses.
 *
 * Works around Spark 4.2 and 4.3: since SPARK-51575 the worker that takes pushed filters also plans the read,
 * and the result is kept with the table (PythonDataSourceV2.setReadInfo), not with the scan. A DataFrame that
 * is read twice, in one query or in two, then reads what the last filter left: too few rows, without an error.
 * Spark also does not tell Python sources which columns a query uses.
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
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.UnaryNode;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Function1;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractPartialFunction;

public class OwnPlans extends Rule {
  private final Set made = Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap()));

  public TreeNode apply(TreeNode plan) {
    return plan.transform(new Own(this));
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
    Set pushed = new HashSet();
    Filter[] filters = (Filter[]) get(scan.scan(), "supportedFilters");
    for (int at = 0; at < filters.length; at++) pushed.addAll(Arrays.asList(filters[at].references()));
    Object[] output = array(scan.output());
    List kept = new ArrayList();
    for (int at = 0; at < output.length; at++) {
      NamedExpression column = (NamedExpression) output[at];
      if (needed.contains(column) || pushed.contains(column.name())) kept.add(column);
    }
    if (kept.isEmpty()) kept.add(cheapest(output));
    Object planned = own(scan, kept);
    return node.transform(new Instead(scan, planned));
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

  public Object own(DataSourceV2ScanRelation node, List kept) throws Exception {
    Scan old = node.scan();
    PythonDataSourceV2 source = (PythonDataSourceV2) get(old, "ds");
    String name = (String) get(old, "shortName");
    StructType schema = (StructType) get(old, "outputSchema");
    CaseInsensitiveStringMap options = (CaseInsensitiveStringMap) get(old, "options");
    Filter[] filters = (Filter[]) get(old, "supportedFilters");
    PythonDataSourceV2 alone = new PythonDataSourceV2();
    alone.setShortName(name);
    boolean whole = kept == null || kept.size() == schema.size();
    if (whole) {
      Object created = source.getOrCreateDataSourceInPython(name, options, new Some(schema));
      Field field = PythonDataSourceV2.class.getDeclaredField("dataSourceInPython");
      field.setAccessible(true);
      field.set(alone, created);
    } else {
      StructField[] fields = new StructField[kept.size()];
      for (int at = 0; at < fields.length; at++) {
        fields[at] = schema.apply(((NamedExpression) kept.get(at)).name());
      }
      schema = new StructType(fields);
      alone.getOrCreateDataSourceInPython(name, options, new Some(schema));
    }
    PythonScanBuilder builder = new PythonScanBuilder(alone, name, schema, options);
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
        return rule.shared(node) || rule.below(node) != null;
      } catch (Exception error) {
        throw new IllegalStateException(error);
      }
    }

    public Object applyOrElse(Object node, Function1 otherwise) {
      if (!isDefinedAt(node)) return otherwise.apply(node);
      try {
        if (node instanceof Project) return rule.narrowed((Project) node);
        return rule.own((DataSourceV2ScanRelation) node, null);
      } catch (RuntimeException error) {
        throw error;
      } catch (Exception error) {
        throw new IllegalStateException(error);
      }
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
